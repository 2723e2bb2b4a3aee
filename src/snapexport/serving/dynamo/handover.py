"""Hands a prompt over from a prefill worker to a decode worker: the message, leases, and landing.

The message is JSON, through Dynamo's frontend. Its addresses are the prefill worker's own, and only
NIXL can use them.

The prefill worker keeps the batch slots of handed-over prompts until they were fetched, or nobody
came. A decode worker notes that it still wants a row (`hold`), or that it has fetched it (`end`). A
worker that was killed notes nothing: its leases end by time. Each lease has a stamp, 8 bytes in
memory that a decode worker reads after the row. The stamp is erased before the batch slot is used
again, and so shows a reader that it came too late.

The decode worker lends memory in which fetched rows land, until the runtime has copied them into a
batch slot. Nothing may land in a batch slot itself: decode steps write to idle ones too.

Knows no NIXL and no clock.
"""

import asyncio
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from snapexport.errors import UserError
from snapexport.runtime.engine.backend import Buffer
from snapexport.runtime.engine.rows import Device
from snapexport.runtime.requests.request import TokenLogprobs
from snapexport.serving.model import LEAST

_Natural = Annotated[int, Field(ge=0, lt=1 << 63)]
_Token = Annotated[int, Field(ge=0, lt=1 << 32)]


class Span(BaseModel):
    """Bytes in a worker's memory."""

    model_config = ConfigDict(extra="forbid", strict=True)
    address: Annotated[int, Field(ge=0, lt=1 << 64)]
    nbytes: Annotated[int, Field(ge=1, lt=1 << 48)]


class Logprob(BaseModel):
    """The first token's log probability, and the likeliest tokens with theirs. All are finite."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    logprob: float
    likeliest: list[_Token]
    likeliest_logprobs: list[float]

    @classmethod
    def of(cls, token: TokenLogprobs) -> "Logprob":
        return cls(
            logprob=max(token.logprob, LEAST),
            likeliest=[other for other, _ in token.top],
            likeliest_logprobs=[max(logprob, LEAST) for _, logprob in token.top],
        )

    def as_of(self, token: int) -> TokenLogprobs:
        """The same, for the runtime."""
        pairs = zip(self.likeliest, self.likeliest_logprobs, strict=False)
        return TokenLogprobs(token, self.logprob, tuple(pairs))


class HandOver(BaseModel):
    """A prefilled prompt: where its row is, and what decode needs to go on.

    digest: of the build. agent: NIXL's metadata of the prefill worker, base64. lease: names the row
    to the prefill worker. stamp: 8 bytes that hold `lease` as long as the row is this prompt's.
    """

    model_config = ConfigDict(extra="forbid", strict=True)
    digest: str
    place: Device
    agent: str
    lease: Annotated[int, Field(ge=1, lt=1 << 63)]
    stamp: Span
    row: list[Span]
    prompt_length: _Natural
    first_token: _Token
    logprobs: list[Logprob]


def read(given: Any) -> HandOver:
    """Check what came through the frontend. Raises UserError."""
    try:
        return HandOver.model_validate(given)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"])) or "the whole"
        raise UserError(
            f"the prefill worker's hand-over is not valid: {where}: {problem['msg'].lower()}",
            "run one version of snapexport in every worker",
        ) from None


HOLD, END = "hold", "end"
_NOTE = re.compile(rb"(hold|end) (\d{1,19})")


def note(verb: str, lease: int) -> bytes:
    """The bytes of a note to a prefill worker."""
    return f"{verb} {lease}".encode()


def parse(text: bytes) -> tuple[str, int]:
    """The note's verb and lease; an empty verb for anything else."""
    found = _NOTE.fullmatch(text)
    return (found[1].decode(), int(found[2])) if found else ("", 0)


@dataclass(slots=True)
class _Lease:
    request_id: int
    stamp: int
    until: float


class Leases:
    """Up to `count` leases at once, as many as there are batch slots."""

    def __init__(self, count: int, seconds: float, release: Callable[[int], None]) -> None:
        """release: frees the batch slot of a request."""
        self.stamps: NDArray[np.int64] = np.zeros(count, np.int64)
        self.expired = 0
        self._seconds, self._release = seconds, release
        self._free = set(range(count))
        self._leases: dict[int, _Lease] = {}
        self._of_request: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._leases)

    def grant(self, request_id: int, now: float) -> None:
        """Begin a request's lease."""
        stamp = self._free.pop()
        lease = secrets.randbelow((1 << 63) - 1) + 1  # unguessable: it names the row to others
        self._leases[lease] = _Lease(request_id, stamp, now + self._seconds)
        self._of_request[request_id] = lease
        self.stamps[stamp] = lease

    def of(self, request_id: int) -> tuple[int, int] | None:
        """A request's lease and the index of its stamp; None if it has ended."""
        lease = self._of_request.get(request_id)
        return None if lease is None else (lease, self._leases[lease].stamp)

    def extend(self, lease: int, now: float) -> None:
        """Somebody still wants the row."""
        if found := self._leases.get(lease):
            found.until = now + self._seconds

    def end(self, lease: int) -> None:
        """Free the batch slot. Does nothing for a lease that has ended."""
        if found := self._leases.pop(lease, None):
            self.stamps[found.stamp] = 0
            self._free.add(found.stamp)
            del self._of_request[found.request_id]
            self._release(found.request_id)

    def expire(self, now: float) -> None:
        """End all leases that are over."""
        for lease in [name for name, lease in self._leases.items() if lease.until <= now]:
            self.expired += 1
            self.end(lease)


@dataclass(eq=False, slots=True)
class Landing:
    """Memory for one row, and for the stamp that is read after it."""

    row: tuple[Buffer, ...]
    stamp: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))

    @property
    def stamp_span(self) -> Span:
        """Where the stamp is."""
        return Span(address=self.stamp.ctypes.data, nbytes=self.stamp.nbytes)


class LandingRows:
    """A fixed number of them. The longest waiting borrower is next."""

    def __init__(self, rows: list[Landing]) -> None:
        self._free: asyncio.Queue[Landing] = asyncio.Queue()
        for row in rows:
            self._free.put_nowait(row)

    @asynccontextmanager
    async def borrow(
        self, every: float, meanwhile: Callable[[], Awaitable[None]]
    ) -> AsyncIterator["Borrowed"]:
        """Lend one. meanwhile: called after each `every` seconds of waiting."""
        while True:
            try:
                row = await asyncio.wait_for(self._free.get(), every)
                break
            except TimeoutError:
                await meanwhile()
        loan = Borrowed(row, self._free)
        try:
            yield loan
        finally:
            loan.give_back()


class Borrowed:
    """A landing row on loan."""

    def __init__(self, row: Landing, free: "asyncio.Queue[Landing]") -> None:
        self.row = row
        self._free: asyncio.Queue[Landing] | None = free

    def give_back(self) -> None:
        """Let the next borrower have it. A second call does nothing."""
        if self._free is not None:
            self._free.put_nowait(self.row)
            self._free = None

    def replace(self, row: Landing) -> None:
        """Never lend this one again: a transfer that can't be stopped may still write to it."""
        self.row = row
