"""Notes when the executor last finished a piece of work, and since when it has been at the next.

A piece is a decode step, or a chunk of a prompt with the compress step that may follow it. How long
one takes depends on the build and the machine: silence is judged by the longest so far.
"""

import time
from dataclasses import dataclass

PATIENCE_SECONDS = 30.0
"""Seconds without a finished piece that are always allowed."""

LENGTHS = 10
"""Times the longest piece so far that are allowed, where this is more."""


@dataclass(slots=True)
class Pulse:
    """Times of time.monotonic(). The thread that steps writes them, any may read them."""

    last: float = float("-inf")
    """Time at which a piece was finished."""
    since: float | None = None
    """Time at which the present piece began; None: there is no work."""
    longest: float = 0.0
    """Seconds of the longest piece so far, the first run of its graph included."""

    def work(self) -> None:
        """Begin a piece, unless one has begun."""
        if self.since is None:
            self.since = time.monotonic()

    def beat(self) -> None:
        """Finish a piece; the next one begins."""
        self.last = time.monotonic()
        if self.since is not None:
            self.longest = max(self.longest, self.last - self.since)
        self.since = self.last

    def rest(self) -> None:
        """There is no work."""
        self.since = None

    @property
    def silence(self) -> float:
        """Seconds since a piece was finished or work came; 0 without work."""
        since = self.since
        return 0.0 if since is None else time.monotonic() - since

    @property
    def is_silent(self) -> bool:
        """Whether the present piece takes far longer than it should."""
        return self.silence > max(PATIENCE_SECONDS, LENGTHS * self.longest)
