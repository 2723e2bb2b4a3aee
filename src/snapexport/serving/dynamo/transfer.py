"""Lends prefilled prompts to other workers, and fetches theirs: each becomes a request here.

A row is lent until somebody has fetched it. Fetched rows are counted:

row_bytes_total / row_full_cache_bytes_total is the share of a full cache that compression leaves to
move. Knows NIXL only by `Transport`, and no request of Dynamo.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace

from snapexport.contract.manifest import Manifest
from snapexport.contract.memory import cache_bytes
from snapexport.errors import UserError
from snapexport.runtime.engine.backend import Buffer
from snapexport.runtime.engine.executor import Executor
from snapexport.runtime.engine.rows import Row, Rows, device_of
from snapexport.runtime.requests.request import OutputDelta, Prefilled, Request
from snapexport.serving.dynamo.handover import (
    END,
    HOLD,
    Borrowed,
    HandOver,
    Landing,
    LandingRows,
    Leases,
    Logprob,
    Span,
    note,
    parse,
)
from snapexport.serving.dynamo.transport import FetchError, Spans, StuckError, Transport
from snapexport.serving.metrics import Metric
from snapexport.serving.model import Model
from snapexport.serving.streams import Stream

LISTEN_SECONDS, LENT_SECONDS = 0.005, 0.0005
"""Between two looks for notes: while nothing is lent, and while a row may be on its way. Over some
links, such as TCP, a look is what moves it on."""


class Lender:
    """Rows on loan to decode workers, from the moment that they arrive in the event loop.

    A client may leave at that moment: nobody reads the output then, and the lease ends by time.
    """

    def __init__(self, model: Model, transport: Transport, seconds: float) -> None:
        executor, batch = model.llm.executor, model.limits.batch
        self.leases = Leases(batch, seconds, model.streams.worker.release)
        model.streams.on_output = self._lend
        self._transport = transport
        stamps = self.leases.stamps
        self._stamps = [
            Span(address=int(stamps[i:].ctypes.data), nbytes=stamps.itemsize) for i in range(batch)
        ]
        assert executor.rows, "a build with --tensor-parallel has no role"
        for slot in range(batch):
            row = executor.rows.buffers(slot)
            transport.register(Spans.of(device_of(row), row))
        transport.register(Spans("cpu", tuple(self._stamps)))
        self._metadata = transport.metadata  # of all that is registered
        self._task = asyncio.get_running_loop().create_task(self._listen())

    def _lend(self, stream: Stream, output: OutputDelta) -> None:
        if output.row:
            assert stream.request_id is not None
            self.leases.grant(stream.request_id, time.monotonic())

    def message(self, request_id: int, delta: OutputDelta, row: Row) -> HandOver:
        """The message to the decode worker. Raises FetchError if the lease has ended already."""
        found = self.leases.of(request_id)
        if found is None:
            raise FetchError("the prefill worker was too slow to hand the prompt over")
        lease, stamp = found
        return HandOver(
            digest=row.digest,
            place=row.device,
            agent=self._metadata,
            lease=lease,
            stamp=self._stamps[stamp],
            row=list(Spans.of(row.device, row.buffers).spans),
            prompt_length=row.prompt_length,
            first_token=delta.token_ids[0],
            logprobs=[Logprob.of(token) for token in delta.logprobs],
        )

    async def _listen(self) -> None:
        while True:
            await asyncio.sleep(LENT_SECONDS if len(self.leases) else LISTEN_SECONDS)
            for text in self._transport.notes():
                self._take(text)
            self.leases.expire(time.monotonic())

    def _take(self, text: bytes) -> None:
        verb, lease = parse(text)
        if verb == HOLD:
            self.leases.extend(lease, time.monotonic())
        elif verb == END:
            self.leases.end(lease)

    async def close(self) -> None:
        """Listen no more."""
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task


METRICS = (
    Metric("rows_moved_total", "COUNTER", "Prompts whose caches were fetched"),
    Metric("rows_failed_total", "COUNTER", "Prompts whose caches could not be fetched"),
    Metric("row_bytes_total", "COUNTER", "Bytes of the fetched caches"),
    Metric("row_full_cache_bytes_total", "COUNTER", "Bytes of the same prompts' full caches"),
    Metric("row_seconds_total", "COUNTER", "Seconds of fetching"),
    Metric("leases", "GAUGE", "Prompts that wait in batch slots to be fetched"),
    Metric("leases_expired_total", "COUNTER", "Prompts that nobody fetched in time"),
)


@dataclass(slots=True)
class Moved:
    """Rows that this worker has fetched. full_bytes_per_token: of an uncompressed cache."""

    full_bytes_per_token: float
    rows_moved_total: int = 0
    rows_failed_total: int = 0
    row_bytes_total: int = 0
    row_full_cache_bytes_total: float = 0
    row_seconds_total: float = 0

    @classmethod
    def by(cls, manifest: Manifest) -> "Moved":
        """Counts of a build's worker."""
        tokens = manifest.batch * manifest.geometry.L_max
        return cls(cache_bytes(manifest).full / tokens)

    def add(self, nbytes: int, prompt_length: int, seconds: float) -> None:
        """Count one fetched row."""
        self.rows_moved_total += 1
        self.row_bytes_total += nbytes
        self.row_full_cache_bytes_total += self.full_bytes_per_token * prompt_length
        self.row_seconds_total += seconds


LANDING_ROWS = 4
"""Rows that can be on their way at once. Further ones wait in the prefill workers."""

_LOG = logging.getLogger("snapexport.dynamo")


class Landed:
    """A prompt whose row has landed here. request: to be submitted."""

    def __init__(self, given: HandOver, request: Request, loan: Borrowed) -> None:
        prefilled = Prefilled(_row(given, loan.row.row), given.first_token)
        self.request = replace(request, prefilled=prefilled)
        self._loan: Borrowed | None = loan
        self._logprobs = [logprob.as_of(given.first_token) for logprob in given.logprobs]

    def complete(self, delta: OutputDelta) -> OutputDelta:
        """Take the request's next output, and complete the first.

        Its token was chosen by the prefill worker, which knows its log probability.
        """
        if self._loan is None:
            return delta
        self._loan.give_back()  # the row is in its batch slot
        self._loan = None
        return replace(delta, logprobs=(*self._logprobs, *delta.logprobs))


class Fetcher:
    """Brings prompts into this worker's batch slots."""

    def __init__(
        self, executor: Executor, transport: Transport, moved: Moved, hold_seconds: float
    ) -> None:
        """hold_seconds: seconds between two notes to a prefill worker that its row is wanted."""
        self.moved = moved
        self._executor, self._transport = executor, transport
        self._hold_seconds = hold_seconds
        self._rows = LandingRows([self._new_landing() for _ in range(LANDING_ROWS)])

    @asynccontextmanager
    async def land(
        self, given: HandOver, request: Request, go_on: Callable[[], None]
    ) -> AsyncIterator["Landed"]:
        """Fetch a prompt. go_on: raises if the request is no longer wanted.

        Raises UserError for a foreign prompt, before anything is fetched, and FetchError.
        """
        self._require_own(given, request)

        async def hold() -> None:
            go_on()
            self._transport.note(given.agent, note(HOLD, given.lease))

        await hold()
        async with self._rows.borrow(self._hold_seconds, hold) as loan:
            go_on()
            await self._fetch(given, loan)
            yield Landed(given, request, loan)

    async def _fetch(self, given: HandOver, loan: Borrowed) -> None:
        began = time.monotonic()
        try:
            await self._transport.fetch(given, loan.row)
        except FetchError as error:
            self.moved.rows_failed_total += 1
            if isinstance(error, StuckError):
                loan.replace(self._new_landing())
            raise
        seconds = time.monotonic() - began
        nbytes = sum(buffer.nbytes for buffer in loan.row.row)
        self.moved.add(nbytes, given.prompt_length, seconds)
        _LOG.debug("fetched %d bytes in %.2f ms", nbytes, seconds * 1e3)
        try:
            self._transport.note(given.agent, note(END, given.lease))
        except FetchError as error:  # the row is here: its lease will end by time
            _LOG.warning("%s", error)

    def _require_own(self, given: HandOver, request: Request) -> None:
        landing = self._own.buffers(0)
        self._own.require_fits(_row(given, landing))
        if [span.nbytes for span in given.row] != [buffer.nbytes for buffer in landing]:
            raise UserError("the prefill worker's row has other sizes", "serve the same build")
        if given.prompt_length != len(request.prompt_token_ids):
            raise UserError(
                "the prefill worker's row is of another prompt", "send the request again"
            )
        if given.first_token >= self._executor.limits.vocab_size:
            raise UserError(
                f"{given.first_token} is not a token of the model", "serve the same build"
            )

    @property
    def _own(self) -> Rows:
        rows = self._executor.rows
        assert rows, "a build with --tensor-parallel has no role"
        return rows

    def _new_landing(self) -> Landing:
        landing = Landing(self._own.new())
        self._transport.register(Spans.of(device_of(landing.row), landing.row))
        self._transport.register(Spans("cpu", (landing.stamp_span,)))
        return landing


def _row(given: HandOver, buffers: tuple[Buffer, ...]) -> Row:
    return Row(given.digest, given.place, buffers, given.prompt_length, given.prompt_length)
