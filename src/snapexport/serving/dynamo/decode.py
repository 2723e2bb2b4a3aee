"""Fetches prompts that other workers have prefilled, makes them requests of this one, counts them.

row_bytes_total / row_full_cache_bytes_total is the share of a full cache that compression leaves to
move. Knows NIXL only by `Transport`, and no request of Dynamo.
"""

import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
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
    note,
)
from snapexport.serving.dynamo.transport import FetchError, Spans, StuckError, Transport
from snapexport.serving.metrics import Metric

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

    def seen(self, delta: OutputDelta) -> OutputDelta:
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
    async def landed(
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
        async with self._rows.borrowed(self._hold_seconds, hold) as loan:
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
