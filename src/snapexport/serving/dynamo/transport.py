"""Moves rows between processes with NIXL: by UCX, in the host's or a GPU's memory.

A READ by the process that needs the bytes; the one that has them does nothing. Descriptors are
passed as numbers, since NIXL's own serialization is pickle. Only the event
loop's thread uses it.
"""

import asyncio
import base64
import binascii
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nixl import _bindings as nixl
from nixl._api import nixl_agent, nixl_agent_config

from snapexport.runtime.engine.backend import Buffer
from snapexport.runtime.engine.rows import Device
from snapexport.serving.dynamo.handover import HandOver, Landing, Span

FETCH_SECONDS = 30.0
_MEMORY: dict[Device, str] = {"cpu": "DRAM", "cuda": "VRAM"}
_POLL_SECONDS = 0.0005
_ERRORS = (  # they share no base of their own
    nixl.nixlBackendError,
    nixl.nixlCancelledError,
    nixl.nixlInvalidParamError,
    nixl.nixlMismatchError,
    nixl.nixlNotAllowedError,
    nixl.nixlNotFoundError,
    nixl.nixlRemoteDisconnectError,
    nixl.nixlUnknownError,
)


class FetchError(Exception):
    """A row could not be fetched: its prompt has to be prefilled again."""


class StuckError(FetchError):
    """A transfer did not end and can't be stopped: it may still write to its landing row."""


@dataclass(frozen=True, slots=True)
class Spans:
    """Bytes in one kind of memory."""

    place: Device
    spans: tuple[Span, ...]

    @classmethod
    def of(cls, place: Device, buffers: Sequence[Buffer]) -> "Spans":
        return cls(place, tuple(Span(address=b.address, nbytes=b.nbytes) for b in buffers))


class Transport:
    """One NIXL agent: this process's registered memory, and the agents that it reads from."""

    def __init__(self, name: str) -> None:
        # NIXL's progress thread polls without a pause: an idle worker would take a core. A look for
        # notes or at a transfer moves both on as well, and somebody looks all the time.
        config = nixl_agent_config(enable_prog_thread=False, backends=["UCX"])
        self._agent = nixl_agent(name, config)
        self._registered: list[object] = []
        self._remotes: dict[str, str] = {}

    def register(self, spans: Spans) -> None:
        """Let NIXL read from this memory, or write to it, until `close`."""
        regions = [(span.address, span.nbytes, 0, "") for span in spans.spans]
        self._registered.append(self._agent.register_memory(regions, _MEMORY[spans.place]))

    @property
    def metadata(self) -> str:
        """How others reach this agent and its registered memory."""
        return base64.b64encode(self._agent.get_agent_metadata()).decode()

    def notes(self) -> Iterator[bytes]:
        """Other agents' notes since the last call."""
        for notes in self._agent.get_new_notifs().values():
            yield from notes

    def note(self, metadata: str, text: bytes) -> None:
        """Send a note to another agent. Raises FetchError."""
        remote = self._remote(metadata)
        try:
            self._agent.send_notif(remote, text)
        except _ERRORS as error:
            raise self._forget(metadata, error) from error

    async def fetch(self, given: HandOver, landing: Landing) -> None:
        """Read a row, and its stamp after it. Raises FetchError."""
        remote = self._remote(given.agent)
        row = Spans.of(given.place, landing.row)
        try:
            await self._read(remote, row, Spans(given.place, tuple(given.row)))
            # Only now: the stamp proves that the row was whole until here.
            await self._read(
                remote, Spans("cpu", (landing.stamp_span,)), Spans("cpu", (given.stamp,))
            )
        except _ERRORS as error:
            raise self._forget(given.agent, error) from error
        if landing.stamp[0] != given.lease:
            raise FetchError("the prefill worker gave the prompt's row up before it was fetched")

    async def _read(self, remote: str, target: Spans, source: Spans) -> None:
        handle = self._agent.initialize_xfer(
            "READ", self._descriptors(target), self._descriptors(source), remote, b""
        )
        state, deadline = self._agent.transfer(handle), time.monotonic() + FETCH_SECONDS
        try:
            while state == "PROC" and time.monotonic() < deadline:
                await asyncio.sleep(_POLL_SECONDS)
                state = self._agent.check_xfer_state(handle)
        finally:  # also if the request is cancelled meanwhile
            self._release(handle)
        if state != "DONE":
            raise FetchError(f"the transfer from the prefill worker ended with {state}")

    def _release(self, handle: object) -> None:
        try:
            self._agent.release_xfer_handle(handle)
        except _ERRORS as error:
            raise StuckError(f"a transfer can't be stopped: {error}") from error

    def _descriptors(self, spans: Spans) -> object:
        each = [(span.address, span.nbytes, 0) for span in spans.spans]
        return self._agent.get_xfer_descs(each, _MEMORY[spans.place])

    def _remote(self, metadata: str) -> str:
        """The name of another agent, which is made known to this one first."""
        if metadata not in self._remotes:
            try:
                name = self._agent.add_remote_agent(base64.b64decode(metadata, validate=True))
            except (binascii.Error, *_ERRORS) as error:
                raise FetchError(f"NIXL does not know the prefill worker: {error}") from error
            self._remotes[metadata] = name if isinstance(name, str) else name.decode()
        return self._remotes[metadata]

    def _forget(self, metadata: str, error: Exception) -> FetchError:
        """Forget an agent that does not answer."""
        if name := self._remotes.pop(metadata, None):
            try:
                self._agent.remove_remote_agent(name)
            except _ERRORS as other:
                error.add_note(f"and it can't be forgotten: {other}")
        return FetchError(f"the prefill worker can't be reached: {type(error).__name__}: {error}")

    def close(self) -> None:
        """Withdraw the registered memory. A second call does nothing."""
        while self._registered:
            self._agent.deregister_memory(self._registered.pop())
