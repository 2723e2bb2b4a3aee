"""Prefills prompts for other workers: each row is lent until somebody has fetched it.

Knows NIXL only by `Transport`, and no request of Dynamo.
"""

import asyncio
import time
from contextlib import suppress

from snapexport.runtime.engine.rows import Row, device_of
from snapexport.runtime.requests.request import OutputDelta
from snapexport.serving.dynamo.handover import END, HOLD, HandOver, Leases, Logprob, Span, parse
from snapexport.serving.dynamo.transport import FetchError, Spans, Transport
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
