"""Options of `snapexport dynamo`, validated once, and whether Dynamo and NIXL are installed."""

import importlib.util
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from snapexport.errors import UserError
from snapexport.runtime.engine.graph_set import Role
from snapexport.serving.options import ModelOptions

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
                    f"'{value}' cannot be a {name.partition('_')[0]} of Dynamo",
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
        for name, least in (("prefill", 0), ("decode", 1), ("migrations", 0)):
            self.require_least(name, least)
        self.require_port()
        self.require_seconds("lease_seconds")


PACKAGES = {
    "dynamo._core": "ai-dynamo-runtime",
    "dynamo.common.backend": "ai-dynamo",
    "nixl": "nixl",
}
WHOLE = "pip install 'snapexport[cpu,dynamo]' && pip install --no-deps ai-dynamo nixl nixl-cu13"


def require_installed() -> None:
    """Raise UserError for a package that is missing."""
    for module, package in PACKAGES.items():
        if not _is_there(module):
            raise UserError(f"the package '{package}' is not installed", WHOLE)


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of the package around it
        return False
