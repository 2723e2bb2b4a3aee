"""What --model_args may say of a build, checked before anything is loaded."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import UnionType
from typing import Any

from snapexport.contract.errors import UserError
from snapexport.runtime.open_executor import BackendName


@dataclass(frozen=True, kw_only=True)
class ModelArgs:
    """build: its directory. The rest is LLM's, but for max_gen_toks: for tasks that do not say."""

    build: Path | str
    baseline: bool = False
    threads: int | None = None
    prepack: bool = False
    backend: BackendName | None = None
    max_gen_toks: int = 256

    def __post_init__(self) -> None:
        self._require("baseline", bool, "True or False")
        self._require("threads", int | None, "a whole number")
        self._require("prepack", bool, "True or False")
        self._require("backend", str | None, "onnxruntime, onnxruntime-cuda or tensorrt")
        self._require("max_gen_toks", int, "a whole number")

    def _require(self, name: str, kind: type | UnionType, allowed: str) -> None:
        value = getattr(self, name)
        if not isinstance(value, kind):
            raise UserError(f"{name}={value} cannot be used", f"{name} must be {allowed}")

    @property
    def directory(self) -> Path:
        """A name of digits comes from the harness as a number."""
        return Path(str(self.build))


def read(given: Mapping[str, Any]) -> ModelArgs:
    """The arguments, none of them unknown. Raises UserError."""
    known = [field.name for field in fields(ModelArgs)]
    if unknown := sorted(given.keys() - set(known)):
        raise UserError(
            f"model_args are not known: {', '.join(unknown)}",
            f"use {', '.join(known)}; what a task wants to know goes into --metadata",
        )
    if "build" not in given:
        raise UserError("model_args has no build", "pass --model_args build=DIR")
    return ModelArgs(**given)
