"""What `snapexport triton` is told, validated once."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from snapexport.contract.errors import UserError
from snapexport.serving.triton.interface import UNARY_SUFFIX

Device = Literal["cpu", "gpu"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class RepositoryOptions:
    """A build, and the models that serve it.

    name None: the build directory's, without a ".build". device None: gpu for a build with TensorRT
    engines. threads and token_budget None: the runtime's own choice.
    """

    build: Path
    out: Path
    name: str | None = None
    device: Device | None = None
    max_pending: int = 64
    threads: int | None = None
    token_budget: int | None = None
    copy: bool = False
    overwrite: bool = False

    def __post_init__(self) -> None:
        _require_name(self.model_name)
        _require("--max-pending", self.max_pending, 0)
        _require("--threads", self.threads, 1)
        _require("--token-budget", self.token_budget, 1)

    @property
    def model_name(self) -> str:
        """The name of the streaming model."""
        return self.build.absolute().name.removesuffix(".build") if self.name is None else self.name

    @property
    def unary_name(self) -> str:
        """The name of the model that answers once."""
        return self.model_name + UNARY_SUFFIX


def _require(flag: str, value: int | None, least: int) -> None:
    if value is not None and value < least:
        raise UserError(f"{flag} {value} is too small", f"use {least} or more")


def _require_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise UserError(
            f"'{name}' cannot be a model's name",
            "give --name with letters, digits, dots, dashes and underscores",
        )
