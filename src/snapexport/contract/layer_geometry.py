"""The cache slots of a layer, and the arithmetic of which position is where.

Positions are 0-based. A layer has S = L_sink + L_recent + K cache slots:

    [0, L_sink)                    the first positions (StreamingLLM's attention sinks)
    [L_sink, L_sink + L_recent)    a ring of the newest positions
    [L_sink + L_recent, S)         the prompt positions that SnapKV's vote kept, ascending

Of a prompt of S tokens or fewer nothing is compressed: position p lies at slot p, and decode's ring
is [L_sink, S). The valid slots are always a contiguous prefix, so no mask is needed.

A step of q > 1 tokens may have to forget some of them. So the ring then has spare slots, and graphs
get the position that each cache slot holds.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LayerGeometry:
    """The cache slots of one layer, or of a group of its KV heads: of each head as many.

    spare: ring slots beyond L_recent, 2 * (q - 1) for steps of q tokens. Such a step writes q slots
    in a row, so it skips up to q - 1 at the ring's end. And it overwrites up to q - 1 positions
    that its own first token still sees. chunk: a step sees positions from the last multiple of it
    on, which a ring holds at its beginning; 0: also those before.
    """

    L_sink: int
    L_recent: int
    K: int
    spare: int = 0
    chunk: int = 0

    @property
    def ring_slots(self) -> int:
        """Cache slots of the ring beside kept positions. A step sees its newest L_recent ones."""
        return self.L_recent + self.spare

    @property
    def size(self) -> int:
        """S, the positions that a KV head holds."""
        return self.L_sink + self.L_recent + self.K

    @property
    def cache_slots(self) -> int:
        """The cache slots of a KV head: S, and the spare ones."""
        return self.size + self.spare

    def is_whole(self, prompt_length: int) -> bool:
        """Whether the cache holds every position of a prompt: nothing is compressed then."""
        return prompt_length <= self.size

    def eligible(self, prompt_length: int) -> int:
        """Prompt positions that neither the sinks nor the ring hold after prefill."""
        if self.is_whole(prompt_length):
            return 0
        return prompt_length - self.L_sink - self.L_recent

    def kept(self, prompt_length: int) -> int:
        """How many eligible positions the vote keeps."""
        return min(self.eligible(prompt_length), self.K)

    def ring(self, prompt_length: int) -> range:
        """The cache slots that a step after a prompt of so many tokens writes to."""
        whole = self.K if self.is_whole(prompt_length) else 0
        return range(self.L_sink, self.L_sink + self.ring_slots + whole)

    def cache_slot(self, position: int, prompt_length: int) -> int:
        """The cache slot that prefill, and decode without spare slots, writes `position` to."""
        ring = self.ring(prompt_length)
        if position < self.L_sink or not ring:
            return position
        if self.chunk and not self.spare:
            position %= self.chunk
        return ring[(position - self.L_sink) % len(ring)]

    def valid(self, position: int) -> int:
        """Number of valid cache slots of the token at `position`: the attended length V(p)."""
        if self.chunk:
            position %= self.chunk
        return min(position + 1, self.size)

    def oldest_recent(self, prompt_length: int) -> int:
        """The first position after the prompt's sinks that its ring holds, and a step sees."""
        begun = prompt_length - prompt_length % self.chunk if self.chunk else 0
        after_sinks = min(self.L_sink, prompt_length) + self.eligible(prompt_length)
        return max(after_sinks, begun)

    def source_positions(self, prompt_length: int, kept: Sequence[int]) -> list[int]:
        """The position in each cache slot after the compress step; -1 in an empty slot.

        kept: K positions that the vote kept, -1 where unused.
        """
        if self.is_whole(prompt_length):
            return [p if p < prompt_length else -1 for p in range(self.cache_slots)]
        newest, oldest = prompt_length - 1, max(self.L_sink, prompt_length - self.L_recent)
        ring = [newest - (newest - p) % self.ring_slots for p in self.ring(prompt_length)]
        return [*range(self.L_sink), *(p if p >= oldest else -1 for p in ring), *kept]
