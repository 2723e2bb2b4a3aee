"""One request as its client saw it: the time it was sent, and the times its tokens came."""

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(slots=True)
class Exchange:
    """Times in seconds of one clock. arrivals: when, and how many tokens. error: why it failed."""

    sent: float
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    error: str | None = None

    def arrived(self, at: float, tokens: int) -> None:
        """Note an answer; one without a token, as the text's end may be, counts for nothing."""
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
        """Seconds between tokens; what came together shares its gap."""
        for (before, _), (at, tokens) in zip(self.arrivals, self.arrivals[1:], strict=False):
            yield from [(at - before) / tokens] * tokens
