"""Options of `snapexport serve`, validated once."""

import re
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

from snapexport.errors import UserError, flag_of
from snapexport.runtime.engine.open_executor import BackendName
from snapexport.runtime.requests.row_files import DEFAULT_BYTES
from snapexport.serving.triton.interface import Device

MOST_PORT = 65535

TRITON_ONLY = ("http_port", "grpc_port", "metrics_port", "repository", "device")
"""Fields that need `triton`."""

_HOST = re.compile(r"\*|[A-Za-z0-9]([A-Za-z0-9.-]*)|\[[0-9A-Fa-f:.]+\]")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class ModelOptions:
    """A build, and how a server runs it.

    None: name: the build directory's, without ".build"; other fields: the runtime's default.
    """

    build: Path
    _: KW_ONLY
    name: str | None = None
    max_pending: int = 64
    threads: int | None = None
    token_budget: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("max_pending", 0), ("threads", 1), ("token_budget", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UserError(f"{flag_of(name)} {value} is too small", f"use {least} or more")
        if not _NAME.fullmatch(self.model_name):
            raise UserError(
                f"'{self.model_name}' cannot be a model's name",
                "give --name with letters, digits, dots, dashes and underscores",
            )

    @property
    def model_name(self) -> str:
        """The value of `model` in clients' requests."""
        return self.build.absolute().name.removesuffix(".build") if self.name is None else self.name


@dataclass(frozen=True, kw_only=True)
class ServeOptions(ModelOptions):
    """A build, the server's addresses, and its limits.

    triton: put a Triton server behind the API. Port 0: any free port. None: repository: a temporary
    one; other fields: the runtime's default.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    backend: BackendName | None = None
    parked_rows: int = 0
    parked_dir: Path | None = None
    parked_dir_bytes: int = DEFAULT_BYTES
    compress_every: int = 0
    no_speculation: bool = False
    request_seconds: float = 600
    drain_seconds: float = 30
    api_key: str | None = field(default=None, repr=False)
    allowed_host: tuple[str, ...] = ()
    access_log: bool = False
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
        for name in ("drain_seconds", "parked_rows", "parked_dir_bytes", "compress_every"):
            if not getattr(self, name) >= 0:
                raise _wrong(self, name, "0 or more")
        if self.parked_dir is not None and not self.parked_rows:
            raise UserError("--parked-dir needs --parked-rows", "add --parked-rows 1 or more")
        self._require_usable_access()
        super().__post_init__()

    def _require_usable_access(self) -> None:
        key = self.api_key
        if key is not None and not (key.isascii() and key.isprintable() and key.split() == [key]):
            raise UserError(
                "--api-key is empty, or has other characters than ASCII's without spaces",
                "give a long random one, such as `openssl rand -hex 32` makes",
            )
        for name in self.allowed_host:
            if not _HOST.fullmatch(name):
                raise UserError(
                    f"--allowed-host {name} is no host's name",
                    "give a name or an address without scheme and port, or * for any",
                )

    def _require_own_way(self) -> None:
        if self.triton:
            if self.backend is not None:
                raise UserError(
                    "--backend is not supported with --triton",
                    "use --device cpu or --device gpu",
                )
            for name in ("parked_rows", "parked_dir", "compress_every"):
                if getattr(self, name):
                    raise UserError(
                        f"{flag_of(name)} is not supported with --triton",
                        "leave out one of them: the server in one process keeps rows",
                    )
            if self.no_speculation:
                raise UserError(
                    "--no-speculation is not supported with --triton",
                    "leave out one of them, or serve a build without --tokens-per-step",
                )
            return
        for name in TRITON_ONLY:
            if getattr(self, name) is not None:
                hint = "use --backend, or add --triton" if name == "device" else "add --triton"
                raise UserError(f"{flag_of(name)} needs --triton", f"{hint}, or leave it out")


def _wrong(options: ServeOptions, name: str, allowed: str) -> UserError:
    return UserError(f"{flag_of(name)} {getattr(options, name)} cannot be used", f"use {allowed}")
