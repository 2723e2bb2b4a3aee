"""What happened so far, in numbers: written by whoever sees it, published by the sender."""

from collections import deque
from dataclasses import dataclass, field

from snapexport.runtime.requests import OutputDelta
from snapexport.serving.triton.backend.job import Job


@dataclass(slots=True)
class Tally:
    """Counts since the model was loaded; `seconds` are observations not yet published."""

    prompt_tokens: int = 0
    generated_tokens: int = 0
    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    refused: int = 0
    seconds: deque[tuple[str, float]] = field(default_factory=deque)

    def started(self, job: Job, now: float) -> None:
        """A job has got its slot."""
        self.seconds.append(("queue_seconds", now - job.arrived))

    def heard(self, job: Job, delta: OutputDelta, now: float) -> None:
        """A job has taken this delta in."""
        new = len(delta.token_ids)
        self.generated_tokens += new
        if new and job.tokens == new:
            self.seconds.append(("time_to_first_token_seconds", now - job.arrived))
        if delta.finish_reason == "cancelled":
            self.cancelled += 1
        elif delta.finish_reason == "error":
            self.failed += 1
        elif delta.finish_reason:
            self._finished(job, now)

    def _finished(self, job: Job, now: float) -> None:
        self.finished += 1
        if job.first_token is not None and job.tokens > 1:
            each = (now - job.first_token) / (job.tokens - 1)
            self.seconds.append(("time_per_output_token_seconds", each))
