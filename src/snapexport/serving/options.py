"""Options of the servers, validated once."""

import re
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

from snapexport.contract.exclusions import require_compatible
from snapexport.errors import UserError, flag_of
from snapexport.runtime.chat.parsers.table import AUTO, REASONING_PARSERS, TOOL_PARSERS
from snapexport.runtime.engine.open_executor import BackendName, Device, Precision
from snapexport.runtime.requests.parked_rows import DEFAULT_BYTES
from snapexport.serving.triton import interface

MOST_PORT = 65535
MOST_TEMPERATURE = 2

_HOST = re.compile(r"\*|[A-Za-z0-9]([A-Za-z0-9.-]*)|\[[0-9A-Fa-f:.]+\]")
_ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^/\s]+")
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
    max_num_batched_tokens: int | None = None

    def __post_init__(self) -> None:
        self.require_least("max_pending", 0)
        for name in ("threads", "max_num_batched_tokens"):
            if getattr(self, name) is not None:
                self.require_least(name, 1)
        if not _NAME.fullmatch(self.model_name):
            raise UserError(
                f"'{self.model_name}' cannot be a model's name",
                "give --name with letters, digits, dots, dashes and underscores",
            )

    @property
    def model_name(self) -> str:
        """The value of `model` in clients' requests."""
        return self.build.absolute().name.removesuffix(".build") if self.name is None else self.name

    def require_least(self, name: str, least: int) -> None:
        """Raise UserError for an option below `least`."""
        if (value := getattr(self, name)) < least:
            raise UserError(f"{flag_of(name)} {value} is too small", f"use {least} or more")

    def require_seconds(self, *names: str) -> None:
        """Raise UserError for a time that is not above 0."""
        for name in names:
            if not getattr(self, name) > 0:  # NaN is refused too
                raise self.unusable(name, "a number above 0")

    def require_port(self, name: str = "port") -> None:
        """Raise UserError for a number that is not a port."""
        if not 0 <= getattr(self, name) <= MOST_PORT:
            raise self.unusable(name, f"a number from 0 (a free port) to {MOST_PORT}")

    def unusable(self, name: str, allowed: str) -> UserError:
        """The error of an option's value."""
        return UserError(f"{flag_of(name)} {getattr(self, name)} cannot be used", f"use {allowed}")


@dataclass(frozen=True, kw_only=True)
class ServeOptions(ModelOptions):
    """A build, the server's address, and its limits. Port 0: any free port."""

    host: str = "127.0.0.1"
    port: int = 8000
    backend: BackendName | None = None
    device: Device | None = None
    precision: Precision | None = None
    parked_rows: int = 0
    parked_dir: Path | None = None
    parked_dir_bytes: int = DEFAULT_BYTES
    compress_every: int = 0
    no_speculation: bool = False
    request_seconds: float = 600
    drain_seconds: float = 30
    api_key: str | None = field(default=None, repr=False)
    allowed_host: tuple[str, ...] = ()
    allowed_origin: tuple[str, ...] = ()
    access_log: bool = False
    tool_parser: str = field(default=AUTO, metadata={"choices": TOOL_PARSERS})
    reasoning_parser: str = field(default=AUTO, metadata={"choices": REASONING_PARSERS})
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    no_generation_config: bool = False

    def __post_init__(self) -> None:
        self.require_port()
        self.require_seconds("request_seconds")
        for name in ("drain_seconds", "parked_rows", "parked_dir_bytes", "compress_every"):
            if not getattr(self, name) >= 0:
                raise self.unusable(name, "0 or more")
        self._require_usable_defaults()
        require_compatible(vars(self))
        self._require_usable_access()
        super().__post_init__()

    def _require_usable_defaults(self) -> None:
        """The limits are those of requests."""
        if self.temperature is not None and not 0 <= self.temperature <= MOST_TEMPERATURE:
            raise self.unusable("temperature", f"0 (greedy) to {MOST_TEMPERATURE}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise self.unusable("top_p", "a number above 0, up to 1")
        if self.max_tokens is not None:
            self.require_least("max_tokens", 1)

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
                    f"--allowed-host {name} is not the name of a host",
                    "give a name or an address without scheme and port, or * for any",
                )
        for origin in self.allowed_origin:
            if not _ORIGIN.fullmatch(origin):
                raise UserError(
                    f"--allowed-origin {origin} is not an origin",
                    "give a scheme, a name and a port if there is one, such as "
                    "http://localhost:3000, or * for any",
                )


@dataclass(frozen=True)
class RepositoryOptions(ModelOptions):
    """A build, and the models that serve it. device None: gpu if the build has TensorRT engines."""

    out: Path
    device: interface.Device | None = None
    copy: bool = False
    overwrite: bool = False

    @property
    def unary_name(self) -> str:
        """The name of the unary model."""
        return self.model_name + interface.UNARY_SUFFIX
