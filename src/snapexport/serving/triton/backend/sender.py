"""Sends responses, polls for clients that left, and publishes metrics, in its own thread.

The worker's events come through a bounded queue; cancellations go back to the worker. If the worker
is faster than the clients, waiting outputs of a stream are joined into one response. Knows no LLM.
"""

import heapq
import itertools
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, Full, Queue
from typing import Any, Protocol

from numpy.typing import NDArray

from snapexport.runtime.requests import OutputDelta
from snapexport.serving.generator import Failure, FailureCode, joined
from snapexport.serving.token_text import TokenText
from snapexport.serving.triton.backend.inputs import Inputs
from snapexport.serving.triton.backend.outputs import tensors
from snapexport.serving.triton.interface import Code
from snapexport.serving.worker import ActiveRequest, Event

RUNNING_SECONDS = 0.01
"""How often a running request's client is asked after: it holds a batch slot."""
WAITING_SECONDS = 0.1
"""The same for a request that waits."""
MOST_STEPS = 32
"""Steps that are taken from the queue at once: cancellations and metrics must not starve."""
_IDLE_SECONDS = 0.1

CODES: Mapping[FailureCode, Code] = {
    "full": "UNAVAILABLE",
    "stopping": "UNAVAILABLE",
    "cancelled": "CANCELLED",
    "deadline": "CANCELLED",
    "internal": "INTERNAL",
}


class Port(Protocol):
    """Sends to a request's client. Once a request is accepted, only the sender thread uses it."""

    def send(self, tensors: Mapping[str, NDArray[Any]], is_last: bool) -> None:
        """Send one response."""

    def fail(self, message: str, code: Code) -> None:
        """Send the last response: an error."""

    def is_cancelled(self) -> bool:
        """Whether the client has left, or cancelled its request."""


@dataclass(eq=False, slots=True, kw_only=True)
class TritonRequest(ActiveRequest):
    """An accepted request. Only the sender thread changes the fields after `port`."""

    inputs: Inputs
    port: Port
    closed: bool = False
    """Whether its last response is on its way."""
    held: list[OutputDelta] = field(default_factory=list)
    """Outputs to send at the end, for an answer that is not a stream."""
    echo: str = ""
    """The prompt to echo; empty once sent."""

    def response(self, output: OutputDelta) -> OutputDelta | None:
        """The output to send now, or None: a stream sends each, other answers all at the end."""
        if self.inputs.stream:
            return output
        self.held.append(output)
        return joined(self.held) if output.finish_reason else None


Events = list[tuple[TritonRequest, Event]]
"""The events of one step, or of several."""


class Sender:
    """A thread, from `start` to `stop`."""

    def __init__(
        self,
        incoming: "Queue[Events | None]",
        cancel: Callable[[TritonRequest], None],
        publish: Callable[[], None],
        text_of: TokenText,
        log: Callable[[str], None],
    ) -> None:
        """cancel: called for a request whose client has left. publish: called in every round."""
        self._incoming = incoming
        self._cancel = cancel
        self._publish = publish
        self._text_of = text_of
        self._log = log
        self._new: deque[TritonRequest] = deque()
        self._watched: list[tuple[float, int, TritonRequest]] = []
        self._order = itertools.count()
        self._thread = threading.Thread(target=self._run, name="snapexport-sender", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def watch(self, request: TritonRequest) -> None:
        """Poll from now on whether this request's client has left. Any thread may call this."""
        self._new.append(request)

    def stop(self, seconds: float) -> None:
        """Send waiting responses and stop the thread; wait at most `seconds`."""
        with suppress(Full):
            self._incoming.put(None, timeout=seconds)
        self._thread.join(seconds)

    def _run(self) -> None:
        is_last = False
        while not is_last:
            events, is_last = self._receive()
            for request, event in merged(events):
                self._guarded(self._send, request, event)
            self._guarded(self._watch)
            self._guarded(self._publish)

    def _receive(self) -> tuple[Events, bool]:
        """All waiting events, after a timeout if there are none; and whether to stop."""
        events: Events = []
        patience = self._patience()
        with suppress(Empty):
            for _ in range(MOST_STEPS):
                step = self._incoming.get(timeout=patience)
                if step is None:
                    return events, True
                events += step
                patience = 0
        return events, False

    def _patience(self) -> float:
        """Seconds until the next poll of a client."""
        if self._new or not self._watched:
            return 0.001 if self._new else _IDLE_SECONDS
        return min(max(self._watched[0][0] - time.monotonic(), 0.001), _IDLE_SECONDS)

    def _send(self, request: TritonRequest, event: Event) -> None:
        if isinstance(event, Failure):
            request.closed = True
            request.port.fail(event.message, CODES[event.code])
            return
        request.closed = event.finish_reason is not None
        if output := request.response(event):
            echo, request.echo = request.echo, ""
            prompt_tokens = len(request.request.prompt_token_ids)
            response = tensors(request.inputs, prompt_tokens, output, echo, self._text_of)
            request.port.send(response, is_last=request.closed)

    def _watch(self) -> None:
        """Poll the clients that are due; only one of them while events are waiting."""
        while self._new:
            self._ask_later(self._new.popleft())
        while self._watched and self._watched[0][0] <= time.monotonic():
            _, _, request = heapq.heappop(self._watched)
            if request.closed:
                continue
            if request.port.is_cancelled():
                self._cancel(request)
            else:
                self._ask_later(request)
            if not self._incoming.empty():
                break

    def _ask_later(self, request: TritonRequest) -> None:
        later = WAITING_SECONDS if request.started is None else RUNNING_SECONDS
        heapq.heappush(self._watched, (time.monotonic() + later, next(self._order), request))

    def _guarded(self, act: Callable[..., None], *arguments: object) -> None:
        """Run an action; log its error, so that other responses go on."""
        try:
            act(*arguments)
        except Exception:
            self._log(traceback.format_exc())


def merged(events: Events) -> Events:
    """The events with one joined output for each request, and then the failures."""
    outputs: dict[TritonRequest, list[OutputDelta]] = {}
    failures: Events = []
    for request, event in events:
        if isinstance(event, Failure):
            failures.append((request, event))
        else:
            outputs.setdefault(request, []).append(event)
    return [(request, joined(each)) for request, each in outputs.items()] + failures
