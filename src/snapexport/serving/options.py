"""Options of `snapexport serve`, validated once."""

import re
from dataclasses import dataclass
from pathlib import Path

from snapexport.contract.errors import UserError
from snapexport.runtime.open_executor import BackendName
from snapexport.serving.triton.interface import Device

MOST_PORT = 65535

TRITON_ONLY = ("http_port", "grpc_port", "metrics_port", "repository", "device")
"""Fields that need `triton`."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class ServeOptions:
    """A build, the server's addresses, and its limits.

    triton: put a Triton server behind the API. Port 0: any free port. None: name: the build
    directory's; repository: a temporary one; other fields: the runtime's default.
    """

    build: Path
    host: str = "127.0.0.1"
    port: int = 8000
    name: str | None = None
    backend: BackendName | None = None
    max_pending: int = 64
    threads: int | None = None
    token_budget: int | None = None
    request_seconds: float = 600
    drain_seconds: float = 30
    triton: bool = False
    http_port: int | None = None
    grpc_port: int | None = None
    metrics_port: int | None = None
    repository: Path | None = None
    device: Device | None = None

    def __post_init__(self) -> None:
        self._require_own_way()
        for name in ("port", "http_port", "grpc_port", "metrics_port"):
            if not 0 <= (getattr(self, name) or 0) <= MOST_PORT:
                raise _wrong(self, name, f"a number from 0 (a free port) to {MOST_PORT}")
        if not self.request_seconds > 0:
            raise _wrong(self, "request_seconds", "a number above 0")
        if not self.drain_seconds >= 0:
            raise _wrong(self, "drain_seconds", "0 or more")
        require_at_least("--max-pending", self.max_pending, 0)
        require_at_least("--threads", self.threads, 1)
        require_at_least("--token-budget", self.token_budget, 1)
        require_name(self.model_name)

    @property
    def model_name(self) -> str:
        """The value of `model` in clients' requests."""
        return model_name(self.build, self.name)

    def _require_own_way(self) -> None:
        if self.triton:
            if self.backend is not None:
                raise UserError(
                    "--backend is not supported with --triton",
                    "use --device cpu or --device gpu",
                )
            return
        for name in TRITON_ONLY:
            if getattr(self, name) is not None:
                hint = "use --backend, or add --triton" if name == "device" else "add --triton"
                raise UserError(f"{_flag(name)} needs --triton", f"{hint}, or leave it out")


def model_name(build: Path, name: str | None) -> str:
    """`name`, or else the build directory's without ".build"."""
    return build.absolute().name.removesuffix(".build") if name is None else name


def require_at_least(flag: str, value: int | None, least: int) -> None:
    """Raise UserError for a value below `least`."""
    if value is not None and value < least:
        raise UserError(f"{flag} {value} is too small", f"use {least} or more")


def require_name(name: str) -> None:
    """Raise UserError for an invalid name of a model."""
    if not _NAME.fullmatch(name):
        raise UserError(
            f"'{name}' cannot be a model's name",
            "give --name with letters, digits, dots, dashes and underscores",
        )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _wrong(options: ServeOptions, name: str, allowed: str) -> UserError:
    return UserError(f"{_flag(name)} {getattr(options, name)} cannot be used", f"use {allowed}")
