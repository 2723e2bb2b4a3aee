"""What answers behind the API: a generator, and the process or thread that runs its model."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from snapexport.contract.errors import UserError
from snapexport.serving.generator import Generator


class Supervised(Protocol):
    """A process or thread that runs a model."""

    @property
    def is_running(self) -> bool:
        """Whether it is alive."""
        ...

    @property
    def needs_probe(self) -> bool:
        """Whether its model may have stopped answering although it is alive."""
        ...


@dataclass(frozen=True)
class Backing:
    """log: the end of a server's log. http, grpc, metrics: URLs of a server of its own."""

    generator: Generator
    supervised: Supervised
    log: Callable[[], str] = lambda: ""
    http: str | None = None
    grpc: str | None = None
    metrics: str | None = None

    def failed(self, reason: str) -> UserError:
        """The error that ends the command."""
        if log := self.log():
            reason = f"{reason}; the end of the server's log:\n{log}"
        return UserError(reason, "look for the reason above, and start it again")
