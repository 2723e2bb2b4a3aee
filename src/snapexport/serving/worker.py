"""Runs an LLM in its own thread: accepts requests, steps, and delivers outputs or failures.

Only the worker's thread uses the LLM, except for `LLM.read`. Other threads post requests and
cancellations, and the worker takes them up between two steps. Knows no event loop.
"""

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, Literal, TypeVar

from snapexport.errors import UserError
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.request import OutputDelta, Request
from snapexport.serving.metrics import METRICS, Observe

FailureCode = Literal["full", "stopping", "cancelled", "deadline", "internal", "invalid"]
"""full: all batch slots and places in the queue are taken. invalid: the request itself."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason why a request was refused or ended early."""

    message: str
    code: FailureCode


class GenerationError(Exception):
    """A failure, as the stream of its request raises it."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.code = failure.code


CANCELLED = Failure("the request was cancelled by its client", "cancelled")
STOPPING = Failure("the server is shutting down", "stopping")
NOT_FINITE = Failure(
    "the model's logits are not finite (a build in 16 bits may need --dtype fp32)", "internal"
)


def full(room: int) -> Failure:
    """room: requests that can run and wait at once."""
    return Failure(f"{room} requests are running or waiting already: try again later", "full")


NO_MEMORY = Failure("the server's memory is near its bound: try again later", "full")


def late(seconds: float) -> Failure:
    """seconds: the time that the request had."""
    return Failure(f"deadline exceeded: the answer took longer than {seconds:g} s", "deadline")


def internal(error: Exception) -> Failure:
    """The failure of a request that an exception of the runtime ended."""
    if isinstance(error, UserError):
        return Failure(str(error), "invalid")
    return Failure(f"the runtime failed: {type(error).__name__}: {error}", "internal")


PAUSE_SECONDS = 0.1
"""Seconds to pause after an unexpected error. A lasting error would fill the log otherwise."""


@dataclass(eq=False, slots=True, kw_only=True)
class ActiveRequest:
    """A request and its progress, from arrival to end. Times are of time.monotonic().

    timeout: the request is cancelled that many seconds after `arrived`; 0: never.
    """

    request: Request
    arrived: float = field(default_factory=time.monotonic)
    timeout: float = 0.0
    request_id: int | None = None
    """The LLM's request, once the worker has submitted it."""
    started: float | None = None
    """Time at which the request got a batch slot."""
    prefilled: int = 0
    """Tokens of the prompt, until its first token. Other threads may read it."""
    first_token: float | None = None
    tokens: int = 0
    ending: Failure | None = None
    """The reason, if the worker has cancelled the request."""

    @property
    def deadline(self) -> float:
        return self.arrived + self.timeout if self.timeout else float("inf")


Active = TypeVar("Active", bound=ActiveRequest)
Event = OutputDelta | Failure


class Worker(Generic[Active]):
    """The thread that owns the LLM, from `start` to `stop`.

    deliver: called in the worker's thread after a step, with all events of the step. observe:
    called there too, with the name and the seconds of an observation for a histogram.
    """

    def __init__(
        self,
        llm: LLM,
        deliver: Callable[[list[tuple[Active, Event]]], None],
        max_pending: int,
        log: Callable[[str], None],
        observe: Observe,
    ) -> None:
        counters = (metric.name for metric in METRICS if metric.kind == "COUNTER")
        self.counters = dict.fromkeys(counters, 0)
        """Counts since the build was loaded. Any thread may read them."""
        self._observe = observe
        self._llm = llm
        self._deliver = deliver
        self._room = llm.executor.limits.batch + max_pending
        self._log = log
        self._changed = threading.Condition()
        self._inbox: deque[Callable[[], None]] = deque()
        self._accepted = 0
        self._stopping = False
        self.holds = False
        """Whether new requests are refused for lack of memory. Any thread may set it."""
        self._live: dict[int, Active] = {}
        self._thread = threading.Thread(target=self._run, name="snapexport-worker", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    @property
    def is_idle(self) -> bool:
        """Whether no request runs or waits."""
        return not self._accepted

    def accept(self, active: Active) -> Failure | None:
        """Queue a request. Returns the failure if it is refused."""
        with self._changed:
            if self._stopping or self.holds or self._accepted >= self._room:
                self.counters["requests_refused_total"] += 1
                if self._stopping:
                    return STOPPING
                return NO_MEMORY if self.holds else full(self._room)
            self._accepted += 1
            self._post(partial(self._submit, active))  # in this block: the worker may stop after it
        return None

    def cancel(self, active: Active, why: Failure) -> None:
        """End a request before the next step. Does nothing for an ended request."""
        self._post(partial(self._cancel, active, why))

    def end_latest(self) -> None:
        """End the request that came last, for lack of memory, before the next step."""
        live = [active for active in tuple(self._live.values()) if active.ending is None]
        if live:
            self.cancel(max(live, key=lambda active: active.arrived), NO_MEMORY)

    def release(self, request_id: int) -> None:
        """Free the batch slot of a request that handed its row over, before the next step."""
        self._post(partial(self._llm.release, request_id))

    def stop(self, seconds: float) -> None:
        """End all requests and the thread; wait at most `seconds` for it."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def values(self) -> dict[str, float]:
        """The changing gauges, and the counters. Any thread may call this."""
        running = sum(active.started is not None for active in tuple(self._live.values()))
        return {
            "requests_running": running,
            "requests_waiting": max(0, self._accepted - running),
            "slots_used": self._llm.slots_used,
            **self.counters,
        }

    def _run(self) -> None:
        try:
            while self._wait():
                self._step_or_end_all()
        finally:
            with self._changed:
                self._stopping = True  # however the loop ended: no request may wait for it
            self._take_up()
            self._emit(self._end_all(STOPPING))

    def _wait(self) -> bool:
        """Sleep while there is nothing to do. Returns False if the worker has to stop."""
        with self._changed:
            while not (self._stopping or self._inbox or self._llm.busy):
                self._llm.pulse.rest()
                self._changed.wait()
            return not self._stopping

    def _step_or_end_all(self) -> None:
        try:
            self._emit(self._step())
        except Exception as error:
            self._log(traceback.format_exc())
            self._emit(self._end_all(internal(error)))
            time.sleep(PAUSE_SECONDS)

    def _step(self) -> list[tuple[Active, Event]]:
        """One step of the LLM, after submitting new requests and cancelling ended ones."""
        self._take_up()
        now = time.monotonic()
        for active in self._live.values():
            if now > active.deadline:
                self._cancel(active, late(active.timeout))
        deltas = self._llm.step()
        self._note_started(now)
        now = time.monotonic()
        known = [delta for delta in deltas if delta.request_id in self._live]
        return [self._event(delta, now) for delta in known]

    def _post(self, command: Callable[[], None]) -> None:
        with self._changed:
            self._inbox.append(command)
            self._changed.notify()

    def _take_up(self) -> None:
        """Run what other threads have posted."""
        for _ in range(len(self._inbox)):
            self._inbox.popleft()()

    def _submit(self, active: Active) -> None:
        try:
            active.request_id = self._llm.submit(active.request)
        except Exception as error:  # the others must not be lost with it
            self._log(traceback.format_exc())
            self._leave()
            self.counters["requests_failed_total"] += 1
            self._emit([(active, internal(error))])
            return
        self._live[active.request_id] = active
        self.counters["prompt_tokens_total"] += len(active.request.prompt_token_ids)

    def _cancel(self, active: Active, why: Failure) -> None:
        """Free the request's batch slot. Its last delta, "cancelled", comes with the next step.

        Must not fail, since it is the last resort after other failures.
        """
        if active.request_id is None or active.request_id not in self._live:
            return
        active.ending = active.ending or why
        try:
            self._llm.cancel(active.request_id)
        except Exception:
            self._log(traceback.format_exc())

    def _note_started(self, now: float) -> None:
        """Note the requests that no longer wait: they began with this step."""
        waiting = self._llm.waiting
        for request_id, active in self._live.items():
            if active.started is None and request_id not in waiting:
                active.started = now
                self._observe("queue_seconds", now - active.arrived)
            if active.first_token is None:
                active.prefilled = self._llm.prefilled(request_id)

    def _event(self, delta: OutputDelta, now: float) -> tuple[Active, Event]:
        """The event of a delta: an output, or a failure."""
        active = self._live[delta.request_id]
        self._count(active, delta, now)
        if delta.finish_reason:
            self._forget(delta.request_id)
        if delta.finish_reason == "cancelled":
            return active, active.ending or CANCELLED
        if delta.finish_reason == "error":
            return active, internal(delta.exception) if delta.exception else NOT_FINITE
        return active, delta

    def _count(self, active: Active, delta: OutputDelta, now: float) -> None:
        new, counters = len(delta.token_ids), self.counters
        active.tokens += new
        counters["generated_tokens_total"] += new
        counters["drafted_tokens_total"] += delta.drafted
        counters["accepted_tokens_total"] += delta.accepted
        if new and active.first_token is None:
            active.first_token = now
            self._observe("time_to_first_token_seconds", now - active.arrived)
        if delta.finish_reason == "cancelled":
            counters["requests_cancelled_total"] += 1
        elif delta.finish_reason == "error":
            counters["requests_failed_total"] += 1
        elif delta.finish_reason:
            counters["requests_finished_total"] += 1
            if active.first_token is not None and active.tokens > 1:
                mean = (now - active.first_token) / (active.tokens - 1)
                self._observe("time_per_output_token_seconds", mean)

    def _forget(self, request_id: int) -> None:
        del self._live[request_id]
        self._leave()

    def _leave(self) -> None:
        """Free a place in the queue."""
        with self._changed:
            self._accepted -= 1

    def _end_all(self, why: Failure) -> list[tuple[Active, Event]]:
        """End every live request with a failure."""
        ended: list[tuple[Active, Event]] = []
        for request_id, active in list(self._live.items()):
            self._cancel(active, why)
            self._forget(request_id)
            ended.append((active, why))
        self.counters["requests_failed_total"] += len(ended)
        return ended

    def _emit(self, events: list[tuple[Active, Event]]) -> None:
        if events:
            self._deliver(events)
