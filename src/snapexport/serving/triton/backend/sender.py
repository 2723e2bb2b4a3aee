"""The thread that talks with the server: answers, "is it cancelled?", metrics.

It knows no LLM. What the worker has to tell comes through a bounded queue; what it learns of
cancellations goes to the worker. Where the engine is faster than the way to the clients, what has
gathered for a stream goes out as one response.
"""

import heapq
import itertools
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, Full, Queue

from snapexport.serving.triton.backend.job import Answer, Failure, Job, joined
from snapexport.serving.triton.backend.outputs import TextOf, tensors
from snapexport.serving.triton.backend.worker import Said

RUNNING_SECONDS = 0.01
"""How often a client with a slot is asked after: a slot must not be spent on nobody."""
WAITING_SECONDS = 0.1
"""The same for one that waits: it costs nobody anything."""
MOST_STEPS = 32
"""So many are heard at once at the most, lest a fast engine keep the sender from all else."""
_IDLE_SECONDS = 0.1


class Sender:
    """Gives jobs their answers until `stop`."""

    def __init__(
        self,
        incoming: "Queue[Said | None]",
        cancel: Callable[[Job], None],
        publish: Callable[[], None],
        text_of: TextOf,
        log: Callable[[str], None],
    ) -> None:
        """cancel: tell that a job's client has gone. publish: called often, and now and then."""
        self._incoming = incoming
        self._cancel = cancel
        self._publish = publish
        self._text_of = text_of
        self._log = log
        self._new: deque[Job] = deque()
        self._watched: list[tuple[float, int, Job]] = []
        self._order = itertools.count()
        self._thread = threading.Thread(target=self._run, name="snapexport-sender", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def watch(self, job: Job) -> None:
        """Ask now and then whether this job's client is still there. Any thread may call it."""
        self._new.append(job)

    def stop(self, seconds: float) -> None:
        """Send what is left, and end; wait no longer than this."""
        with suppress(Full):
            self._incoming.put(None, timeout=seconds)
        self._thread.join(seconds)

    def _run(self) -> None:
        is_last = False
        while not is_last:
            said, is_last = self._hear()
            for job, one in merged(said):
                self._carefully(self._send, job, one)
            self._carefully(self._watch)
            self._carefully(self._publish)

    def _hear(self) -> tuple[Said, bool]:
        """All that has gathered, if need be after some patience; and whether the end has come."""
        said: Said = []
        patience = self._patience()
        with suppress(Empty):
            for _ in range(MOST_STEPS):
                step = self._incoming.get(timeout=patience)
                if step is None:
                    return said, True
                said += step
                patience = 0
        return said, False

    def _patience(self) -> float:
        """How long it may sleep until the next client has to be asked after."""
        if self._new or not self._watched:
            return 0.001 if self._new else _IDLE_SECONDS
        return min(max(self._watched[0][0] - time.monotonic(), 0.001), _IDLE_SECONDS)

    def _send(self, job: Job, one: Answer | Failure) -> None:
        if isinstance(one, Failure):
            job.closed = True
            job.port.fail(one.message, one.code)
            return
        job.closed = one.finish_reason is not None
        job.port.send(tensors(job, one, self._text_of), is_last=job.closed)

    def _watch(self) -> None:
        """Ask after those whose time has come: all of them, or one where answers are waiting."""
        while self._new:
            self._ask_later(self._new.popleft())
        while self._watched and self._watched[0][0] <= time.monotonic():
            _, _, job = heapq.heappop(self._watched)
            if job.closed:
                continue
            if job.port.is_cancelled():
                self._cancel(job)
            else:
                self._ask_later(job)
            if not self._incoming.empty():
                break

    def _ask_later(self, job: Job) -> None:
        later = WAITING_SECONDS if job.started is None else RUNNING_SECONDS
        heapq.heappush(self._watched, (time.monotonic() + later, next(self._order), job))

    def _carefully(self, act: Callable[..., None], *arguments: object) -> None:
        """One response that can't be sent must not stop the others."""
        try:
            act(*arguments)
        except Exception:
            self._log(traceback.format_exc())


def merged(said: Said) -> Said:
    """The same with one answer for each job, and its failure behind it if it has one."""
    answers: dict[Job, list[Answer]] = {}
    failures: Said = []
    for job, one in said:
        if isinstance(one, Failure):
            failures.append((job, one))
        else:
            answers.setdefault(job, []).append(one)
    return [(job, joined(each)) for job, each in answers.items()] + failures
