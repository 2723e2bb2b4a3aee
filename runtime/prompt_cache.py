"""What stands in the full-length cache of the prompt in prefill: token ids alone, no numbers."""

from collections.abc import Sequence


class CachedTokens:
    """Which tokens' keys and values a prefill cache holds, in whole chunks.

    Whole chunks of a prompt that begins like the last one are there already, to the bit: they need
    not be run again. An engine's cache is a subclass, whose `clear` zeroes the numbers too.
    """

    def __init__(self, chunk: int) -> None:
        self._chunk = chunk
        self._held: list[int] = []

    def holds(self, token_ids: Sequence[int], start: int) -> bool:
        """Whether a chunk at `start` would write what is there."""
        end = start + len(token_ids)
        return end <= len(self._held) and self._held[start:end] == list(token_ids)

    def wrote(self, token_ids: Sequence[int], start: int) -> None:
        """A chunk was run. One off the grid, as the last is, spoils the chunks that it overlaps."""
        aligned = start - start % self._chunk
        del self._held[aligned:]
        if start == aligned == len(self._held):
            self._held += token_ids

    def clear(self) -> None:
        """Forget all."""
        self._held.clear()
