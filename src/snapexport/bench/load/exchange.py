"""Records one request of a client: when it was sent, and when its tokens came."""

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(slots=True)
class Exchange:
    """Times in seconds of one clock. arrivals: (time, number of tokens). error: why it failed."""

    sent: float
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    error: str | None = None

    def arrived(self, at: float, tokens: int) -> None:
        """Record an answer. One without tokens, such as the last, does not count."""
        if tokens:
            self.arrivals.append((at, tokens))

    @property
    def tokens(self) -> int:
        return sum(tokens for _, tokens in self.arrivals)

    @property
    def ttft(self) -> float:
        """Seconds to the first token."""
        return self.arrivals[0][0] - self.sent

    def gaps(self) -> Iterator[float]:
        """ITL in seconds; tokens that came together share their gap."""
        for (before, _), (at, tokens) in zip(self.arrivals, self.arrivals[1:], strict=False):
            yield from [(at - before) / tokens] * tokens
