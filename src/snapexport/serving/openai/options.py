"""What `snapexport serve` is told, validated once."""

from dataclasses import dataclass, fields
from pathlib import Path

from snapexport.contract.errors import UserError
from snapexport.serving.triton.options import Device, RepositoryOptions

MOST_PORT = 65535


@dataclass(frozen=True)
class ServeOptions:
    """A build, where it is served, and how it ends.

    Ports of 0 are free ones. repository None: a temporary one. The fields from `name` to
    `token_budget` are the model repository's.
    """

    build: Path
    host: str = "127.0.0.1"
    port: int = 8000
    http_port: int = 0
    grpc_port: int = 0
    metrics_port: int = 0
    repository: Path | None = None
    request_seconds: float = 600
    drain_seconds: float = 30
    name: str | None = None
    device: Device | None = None
    max_pending: int = RepositoryOptions.max_pending
    threads: int | None = None
    token_budget: int | None = None

    def __post_init__(self) -> None:
        for name in ("port", "http_port", "grpc_port", "metrics_port"):
            if not 0 <= getattr(self, name) <= MOST_PORT:
                raise _wrong(self, name, f"from 0 (a free port) to {MOST_PORT}")
        if not self.request_seconds > 0:
            raise _wrong(self, "request_seconds", "above 0")
        if not self.drain_seconds >= 0:
            raise _wrong(self, "drain_seconds", "0 or more")
        self.for_repository(self.build)

    def for_repository(self, out: Path) -> RepositoryOptions:
        """The model repository's own options. Raises UserError."""
        shared = {field.name for field in fields(RepositoryOptions)} & set(vars(self))
        return RepositoryOptions(out=out, **{name: getattr(self, name) for name in shared})


def _wrong(options: ServeOptions, name: str, allowed: str) -> UserError:
    flag = "--" + name.replace("_", "-")
    return UserError(f"{flag} {getattr(options, name)} cannot be used", f"use a number {allowed}")
