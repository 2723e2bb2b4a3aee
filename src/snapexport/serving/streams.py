"""Connects a worker to an event loop: one stream of outputs for each request.

The event loop never waits for the LLM, and the worker never waits for a client: outputs that a
client has not read yet are joined into one. A step's events reach the loop by one
`call_soon_threadsafe`.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.request import OutputDelta, Request
from snapexport.serving.metrics import Observe
from snapexport.serving.worker import (
    CANCELLED,
    ActiveRequest,
    Event,
    Failure,
    GenerationError,
    Worker,
)

STOP_SECONDS = 5.0
"""Seconds that `close` waits for the running step."""

MOST_UNREAD_TOKENS = 1 << 14
"""Most unread tokens of a client; beyond it the request is cancelled."""


@dataclass(eq=False, slots=True, kw_only=True)
class Stream(ActiveRequest):
    """A request whose outputs wait for a coroutine. Only the event loop uses the fields below."""

    unread: list[OutputDelta] = field(default_factory=list)
    unread_tokens: int = 0
    failure: Failure | None = None
    has_news: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, event: Event) -> None:
        """Add an output or the failure."""
        if isinstance(event, Failure):
            self.failure = event
        else:
            self.unread.append(event)
            self.unread_tokens += len(event.token_ids)
        self.has_news.set()

    async def next(self) -> OutputDelta:
        """All waiting outputs, joined. Raises GenerationError after the last one."""
        await self.has_news.wait()
        self.has_news.clear()
        if self.unread:
            output = join_deltas(self.unread)
            self.unread, self.unread_tokens = [], 0
            if self.failure:
                self.has_news.set()
            return output
        assert self.failure is not None
        raise GenerationError(self.failure)


class Streams:
    """The requests of one worker, for the event loop in which `start` was called."""

    def __init__(
        self,
        llm: LLM,
        *,
        max_pending: int,
        log: Callable[[str], None],
        observe: Observe,
        request_seconds: float = 0.0,
    ) -> None:
        """request_seconds: the timeout of `stream`; 0: none."""
        self.pulse, self.last_failure = llm.pulse, float("-inf")
        self.request_seconds = request_seconds
        self.on_output: Callable[[Stream, OutputDelta], None] | None = None
        """Called in the event loop with each output before its reader gets it."""
        self.worker: Worker[Stream] = Worker(llm, self._deliver, max_pending, log, observe)

    def start(self) -> None:
        """Start the worker, for the running event loop."""
        self._loop = asyncio.get_running_loop()
        self.worker.start()

    @property
    def needs_probe(self) -> bool:
        """Whether the executor has finished nothing since an internal failure."""
        return self.last_failure > self.pulse.last

    def open(self, request: Request) -> Stream:
        """A request with its timeout, `request_seconds`, for `outputs`."""
        return Stream(request=request, timeout=self.request_seconds)

    def stream(self, request: Request) -> AsyncGenerator[OutputDelta]:
        """The outputs of one request, within `request_seconds`."""
        return self.outputs(self.open(request))

    async def outputs(self, stream: Stream) -> AsyncGenerator[OutputDelta]:
        """Yield the outputs of one request. Only the last one has a finish_reason.

        Closing the generator early, by `aclose`, cancels the request. Raises GenerationError.
        """
        if refusal := self.worker.accept(stream):
            raise GenerationError(refusal)
        is_last = False
        try:
            while not is_last:
                output = await stream.next()
                is_last = output.finish_reason is not None
                yield output
        finally:
            if not is_last:
                self.worker.cancel(stream, CANCELLED)

    async def close(self) -> None:
        """Stop the worker; running requests end with an error."""
        await asyncio.to_thread(self.worker.stop, STOP_SECONDS)

    def _deliver(self, events: list[tuple[Stream, Event]]) -> None:
        with suppress(RuntimeError):  # the loop is closed, and with it every stream
            self._loop.call_soon_threadsafe(self._hand_out, events)

    def _hand_out(self, events: list[tuple[Stream, Event]]) -> None:
        for stream, event in events:
            if not isinstance(event, Failure):
                if self.on_output:
                    self.on_output(stream, event)
            elif event.code == "internal":
                self.last_failure = time.monotonic()
            stream.put(event)
            if stream.unread_tokens > MOST_UNREAD_TOKENS:
                unread = f"the client left {MOST_UNREAD_TOKENS} tokens unread"
                self.worker.cancel(stream, Failure(unread, "cancelled"))


def join_deltas(deltas: Sequence[OutputDelta]) -> OutputDelta:
    """Join consecutive deltas of one request into one."""
    last = deltas[-1]
    if len(deltas) == 1:
        return last
    return OutputDelta(
        last.request_id,
        "".join(delta.text for delta in deltas),
        tuple(token for delta in deltas for token in delta.token_ids),
        last.finish_reason,
        logprobs=tuple(logprobs for delta in deltas for logprobs in delta.logprobs),
        row=last.row,
        cached_tokens=sum(delta.cached_tokens for delta in deltas),
        drafted=sum(delta.drafted for delta in deltas),
        accepted=sum(delta.accepted for delta in deltas),
        held=deltas[0].held,
    )
