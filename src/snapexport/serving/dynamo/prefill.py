"""Prefills prompts for other workers: each row is lent until somebody has fetched it.

Knows NIXL by `Transport` alone, and no request of Dynamo.
"""

import asyncio
import time
from contextlib import suppress

from snapexport.runtime.engine.batch_executor import BatchExecutor
from snapexport.runtime.engine.rows import Row, device_of
from snapexport.runtime.requests.request import OutputDelta
from snapexport.serving.dynamo.leases import Leases
from snapexport.serving.dynamo.message import HandOver, Logprob, Span
from snapexport.serving.dynamo.notes import END, HOLD, parse
from snapexport.serving.dynamo.transport import FetchError, Spans, Transport
from snapexport.serving.worker import Event, Stream, Streams

LISTEN_SECONDS, LENT_SECONDS = 0.005, 0.0005
"""Between two looks for notes: while nothing is lent, and while a row may be on its way. Over some
links, such as TCP, a look is what moves it on."""


class Lender:
    """Rows on loan to decode workers."""

    def __init__(
        self, executor: BatchExecutor, streams: Streams, transport: Transport, seconds: float
    ) -> None:
        batch = executor.limits.batch
        self.leases = Leases(batch, seconds, streams.worker.release)
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

    def lend(self, request_id: int) -> None:
        """Begin a lease, whether or not anybody is left to hear of it."""
        self.leases.grant(request_id, time.monotonic())

    def message(self, request_id: int, delta: OutputDelta, row: Row) -> HandOver:
        """What the decode worker has to know. Raises FetchError if the lease has ended already."""
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
            logprobs=[Logprob.of(one) for one in delta.logprobs],
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


class LendingStreams(Streams):
    """Streams whose rows are lent as they arrive in the event loop.

    A client may leave at that moment: nobody reads the output then, and the lease ends by time.
    """

    lender: Lender | None = None

    def _hand_out(self, events: list[tuple[Stream, Event]]) -> None:
        for stream, event in events:
            if isinstance(event, OutputDelta) and event.row and self.lender:
                assert stream.request_id is not None
                self.lender.lend(stream.request_id)
        super()._hand_out(events)
