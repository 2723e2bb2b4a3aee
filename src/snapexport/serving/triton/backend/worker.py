"""The thread that owns the LLM: takes requests in, steps, and hands answers on.

Nobody else touches the LLM but for `read`. Others leave their wishes (`accept`, `cancel`, `stop`)
under a lock, and the worker comes to them between two steps.
"""

import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from queue import Queue

from snapexport.runtime.llm import LLM
from snapexport.runtime.requests import OutputDelta
from snapexport.serving.triton.backend.job import Answer, Failure, Job
from snapexport.serving.triton.backend.tally import Tally

Said = list[tuple[Job, Answer | Failure]]
"""What one step has to tell."""

CANCELLED = Failure("the request was cancelled by its client", "CANCELLED")
DEADLINE = Failure("deadline exceeded: the request's timeout has passed", "CANCELLED")
STOPPING = Failure("the model is being unloaded", "UNAVAILABLE")
NOT_FINITE = Failure(
    "the model's logits are no numbers (build it again with --dtype fp32)", "INTERNAL"
)

_BREATH = 0.1
"""Seconds after an error of our own, lest a lasting one fill the log."""


@dataclass(frozen=True, slots=True)
class Load:
    """What the worker is busy with at a moment."""

    running: int
    waiting: int
    slots_used: int


class Worker:
    """A thread, from `start` to `stop`. `outgoing` is bounded: it can't outrun the sender."""

    def __init__(
        self,
        llm: LLM,
        outgoing: "Queue[Said | None]",
        tally: Tally,
        max_pending: int,
        log: Callable[[str], None],
    ) -> None:
        self._llm = llm
        self._outgoing = outgoing
        self._tally = tally
        self._room = llm.executor.limits.batch + max_pending
        self._log = log
        self._changed = threading.Condition()
        self._arrived: list[Job] = []
        self._unwanted: list[tuple[Job, Failure]] = []
        self._accepted = 0
        self._stopping = False
        self._live: dict[int, Job] = {}
        self._thread = threading.Thread(target=self._run, name="snapexport-worker", daemon=True)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def accept(self, job: Job) -> Failure | None:
        """Take a job, unless there is no room for it; then say why."""
        with self._changed:
            if self._stopping or self._accepted >= self._room:
                self._tally.refused += 1
                return STOPPING if self._stopping else _full(self._room)
            self._accepted += 1
            self._arrived.append(job)
            self._changed.notify()
        return None

    def cancel(self, job: Job, why: Failure) -> None:
        """End a job before the next step. Nothing happens if it has ended."""
        with self._changed:
            self._unwanted.append((job, why))
            self._changed.notify()

    def stop(self, seconds: float) -> None:
        """End all jobs, and the thread; wait no longer than this."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def load(self) -> Load:
        """Any thread may ask; a moment later it may be another."""
        waiting = sum(1 for job in tuple(self._live.values()) if job.started is None)
        slots = self._llm.slots_used
        return Load(len(self._live) - waiting, waiting + len(self._arrived), slots)

    def _run(self) -> None:
        try:
            while self._wait():
                self._turn_or_end_live()
        finally:
            with self._changed:
                self._stopping = True  # whatever has ended the loop: nobody may wait for it
            self._take_in()
            self._tell(self._end_live(STOPPING))

    def _turn_or_end_live(self) -> None:
        try:
            self._tell(self._turn())
        except Exception as error:
            self._log(traceback.format_exc())
            self._tell(self._end_live(_internal(error)))
            time.sleep(_BREATH)

    def _wait(self) -> bool:
        """Sleep while there is nothing to do; False where the end has come."""
        with self._changed:
            while not (self._stopping or self._arrived or self._unwanted or self._llm.busy):
                self._changed.wait()
            return not self._stopping

    def _turn(self) -> Said:
        """One step, with what came and went before it."""
        self._take_in()
        now = time.monotonic()
        for job in self._live.values():
            if job.deadline is not None and now > job.deadline:
                self._drop(job, DEADLINE)
        deltas = self._llm.step()
        now = time.monotonic()
        self._note_started(now)
        said = [self._heard(delta, now) for delta in deltas]
        return [one for one in said if one is not None]

    def _take_in(self) -> None:
        with self._changed:
            arrived, self._arrived = self._arrived, []
            unwanted, self._unwanted = self._unwanted, []
        for job in arrived:
            try:
                self._submit(job)
            except Exception as error:  # the others must not be lost for one
                self._log(traceback.format_exc())
                self._leave()
                self._tally.failed += 1
                self._tell([(job, _internal(error))])
        for job, why in unwanted:
            self._drop(job, why)

    def _submit(self, job: Job) -> None:
        job.request_id = self._llm.submit(job.request)
        self._live[job.request_id] = job
        self._tally.prompt_tokens += len(job.request.prompt_token_ids)

    def _drop(self, job: Job, why: Failure) -> None:
        """Cancel it: its last delta comes with the next step, and says so."""
        if job.request_id is not None and job.request_id in self._live:
            job.ending = job.ending or why
            self._cancel(job.request_id)

    def _cancel(self, request_id: int) -> None:
        """Must not fail: it is all that is left to do after other failures."""
        try:
            self._llm.cancel(request_id)
        except Exception:
            self._log(traceback.format_exc())

    def _note_started(self, now: float) -> None:
        waiting = self._llm.waiting
        for request_id, job in self._live.items():
            if job.started is None and request_id not in waiting:
                job.started = now
                self._tally.started(job, now)

    def _heard(self, delta: OutputDelta, now: float) -> tuple[Job, Answer | Failure] | None:
        """What a delta means for its job's client."""
        job = self._live.get(delta.request_id)
        if job is None:  # given up after an error of ours
            return None
        answer = job.take(delta, now)
        self._tally.heard(job, delta, now)
        if delta.finish_reason:
            self._forget(delta.request_id)
        if delta.finish_reason == "cancelled":
            return job, job.ending or CANCELLED
        if delta.finish_reason == "error":
            return job, _why(delta)
        return None if answer is None else (job, answer)

    def _forget(self, request_id: int) -> None:
        del self._live[request_id]
        self._leave()

    def _leave(self) -> None:
        """Give a place back."""
        with self._changed:
            self._accepted -= 1

    def _end_live(self, why: Failure) -> Said:
        """After an error of ours, or at the end: nobody is left without a last word."""
        said: Said = []
        for request_id, job in list(self._live.items()):
            self._cancel(request_id)
            self._forget(request_id)
            said.append((job, why))
        self._tally.failed += len(said)
        return said

    def _tell(self, said: Said) -> None:
        if said:
            self._outgoing.put(said)


def _why(delta: OutputDelta) -> Failure:
    return _internal(delta.exception) if delta.exception else NOT_FINITE


def _internal(error: Exception) -> Failure:
    return Failure(f"the engine failed: {type(error).__name__}: {error}", "INTERNAL")


def _full(room: int) -> Failure:
    return Failure(f"{room} requests run and wait already: try again later", "UNAVAILABLE")
