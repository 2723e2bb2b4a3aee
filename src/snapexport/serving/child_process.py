"""Pairs a generator with the process or thread that runs its model."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from snapexport.errors import UserError
from snapexport.serving.generator import Generator


class Supervised(Protocol):
    """A process or thread that runs a model."""

    @property
    def is_running(self) -> bool:
        """Whether the process or thread is alive."""

    @property
    def needs_probe(self) -> bool:
        """Whether to check the model with a probe, since it may hang in a live process."""


@dataclass(frozen=True)
class Backing:
    """log: the end of Triton's log. http, grpc, metrics: URLs of Triton, if there is one."""

    generator: Generator
    supervised: Supervised
    log: Callable[[], str] = lambda: ""
    http: str | None = None
    grpc: str | None = None
    metrics: str | None = None
    restart: Callable[[UserError], Awaitable[None]] | None = None
    """Starts what runs the model again after this error, or raises it."""

    async def recover(self, reason: str) -> None:
        """Start again what runs the model. Raises UserError if it cannot be."""
        error = self.failed(reason)
        if self.restart is None:
            raise error
        await self.restart(error)

    def failed(self, reason: str) -> UserError:
        """The error that ends the command."""
        if log := self.log():
            reason = f"{reason}; the end of the server's log:\n{log}"
        return UserError(reason, "see the log above, and start the server again")
