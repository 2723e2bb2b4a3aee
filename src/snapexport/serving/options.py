"""Options of `snapexport serve`, `triton` and `dynamo`, validated once."""

import re
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Literal

from snapexport.contract.exclusions import require_compatible
from snapexport.errors import UserError, flag_of, require_fields
from snapexport.runtime.chat.parsers.table import AUTO, REASONING_PARSERS, TOOL_PARSERS
from snapexport.runtime.engine.graph_set import Role
from snapexport.runtime.engine.open_executor import BackendName, Device, Precision
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
        require_fields(self, max_pending=0, threads=1, max_num_batched_tokens=1)
        if not _NAME.fullmatch(self.model_name):
            raise UserError(
                f"'{self.model_name}' cannot be a model's name",
                "give --name with letters, digits, dots, dashes and underscores",
            )

    @property
    def model_name(self) -> str:
        """The value of `model` in clients' requests."""
        return self.build.absolute().name.removesuffix(".build") if self.name is None else self.name

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
    """A build, the server's address, and its limits. Port 0: any free port.

    memory: most resident bytes of the process; None: no limit.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    backend: BackendName | None = None
    device: Device | None = None
    precision: Precision | None = None
    parked_rows: int = 0
    parked_dir: Path | None = None
    parked_dir_bytes: int | None = None
    prompt_cache: Path | None = None
    prompt_cache_size: int | None = None
    compress_every: int = 0
    speculates: bool = True
    memory: int | None = None
    request_seconds: float = 600
    drain_seconds: float = 30
    api_key: str | None = field(default=None, repr=False, metadata={"metavar": "KEY"})
    allowed_host: tuple[str, ...] = ()
    allowed_origin: tuple[str, ...] = ()
    access_log: bool = False
    page: bool = True
    tool_parser: str = field(default=AUTO, metadata={"choices": TOOL_PARSERS})
    reasoning_parser: str = field(default=AUTO, metadata={"choices": REASONING_PARSERS})
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    no_generation_config: bool = False

    def __post_init__(self) -> None:
        self.require_port()
        self.require_seconds("request_seconds")
        if not self.drain_seconds >= 0:  # NaN is refused too
            raise self.unusable("drain_seconds", "0 or more")
        require_fields(self, parked_rows=0, parked_dir_bytes=0, compress_every=0, max_tokens=1)
        require_fields(self, prompt_cache_size=0, memory=1)
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

    def _require_usable_access(self) -> None:
        key = self.api_key
        if key is not None and not (key.isascii() and key.isprintable() and key.split() == [key]):
            raise UserError(
                "--api-key is empty, or has spaces or characters that are not ASCII",
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


Discovery = Literal["file", "etcd", "kubernetes"]
EventPlane = Literal["zmq", "nats"]

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


@dataclass(frozen=True, kw_only=True)
class WorkerOptions(ModelOptions):
    """A build, the worker's role, and how Dynamo's parts find each other.

    component: None for "prefill" or "backend", as Dynamo's own workers are called.
    lease_seconds: how long a prefilled prompt waits for a decode worker that sends no note.
    """

    role: Role = "both"
    namespace: str = "dynamo"
    component: str | None = None
    discovery: Discovery = "file"
    event_plane: EventPlane = "zmq"
    chat_template: Path | None = field(default=None, metadata={"metavar": "FILE"})
    lease_seconds: float = 30
    request_seconds: float = 600
    drain_seconds: float = 30

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_seconds("lease_seconds", "request_seconds", "drain_seconds")
        for name in ("namespace", "component_name"):
            if not _WORD.fullmatch(value := getattr(self, name)):
                raise UserError(
                    f"'{value}' cannot be Dynamo's {name.partition('_')[0]}",
                    "use letters, digits, dashes and underscores",
                )
        if self.chat_template and not self.chat_template.is_file():
            raise UserError(
                f"{self.chat_template} is not a file", "name a chat template in Jinja's language"
            )

    @property
    def component_name(self) -> str:
        """The component that the worker registers as."""
        return self.component or ("prefill" if self.role == "prefill" else "backend")


@dataclass(frozen=True, kw_only=True)
class ClusterOptions(ModelOptions):
    """A build, and how many workers of each role serve it on this machine.

    prefill 0: each worker does both. migrations: how often a request may go on in another worker.
    logs: a folder for a log of each process; None for a temporary one.
    """

    prefill: int = 1
    decode: int = 1
    port: int = 8000
    migrations: int = 1
    lease_seconds: float = 30
    logs: Path | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require_fields(self, prefill=0, decode=1, migrations=0)
        self.require_port()
        self.require_seconds("lease_seconds")
