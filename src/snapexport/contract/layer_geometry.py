"""The cache slots of a layer, and the arithmetic of which position is where.

Positions are 0-based. A layer has S = L_sink + L_recent + K cache slots:

    [0, L_sink)                    the first positions (StreamingLLM's attention sinks)
    [L_sink, L_sink + L_recent)    a ring of the newest positions
    [L_sink + L_recent, S)         the prompt positions that SnapKV's vote kept, ascending

The valid slots are always a contiguous prefix, so no mask is needed.

A step of q > 1 tokens may have to forget some of them. So the ring then has spare slots, and graphs
get the position that each cache slot holds.
"""

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
        """Cache slots of the ring. A step sees only its newest L_recent positions."""
        return self.L_recent + self.spare

    @property
    def cache_slots(self) -> int:
        """S, the cache slots of a KV head."""
        return self.L_sink + self.ring_slots + self.K

    def eligible(self, prompt_length: int) -> int:
        """Prompt positions that neither the sinks nor the ring hold after prefill."""
        return max(0, prompt_length - self.L_sink - self.L_recent)

    def kept(self, prompt_length: int) -> int:
        """How many eligible positions the vote keeps."""
        return min(self.eligible(prompt_length), self.K)

    def cache_slot(self, position: int) -> int:
        """The cache slot that prefill, and decode without spare slots, writes `position` to."""
        if position < self.L_sink or self.L_recent == 0:
            return position
        if self.chunk and not self.spare:
            position %= self.chunk
        return self.L_sink + (position - self.L_sink) % self.ring_slots

    def valid(self, position: int, prompt_length: int) -> int:
        """Number of valid cache slots of the token at `position`: the attended length V(p)."""
        if self.chunk:
            position %= self.chunk
        return min(position + 1, self.L_sink + self.L_recent) + self.kept(prompt_length)

    def oldest_recent(self, prompt_length: int) -> int:
        """The first position after the prompt's sinks that its ring holds, and a step sees."""
        begun = prompt_length - prompt_length % self.chunk if self.chunk else 0
        return max(min(self.L_sink, prompt_length), prompt_length - self.L_recent, begun)

    def source_positions(self, prompt_length: int) -> list[int]:
        """The position in each sink and ring slot after the compress step; -1 in an empty slot."""
        newest = prompt_length - 1
        oldest = max(self.L_sink, prompt_length - self.L_recent)
        sinks = [p if p <= newest else -1 for p in range(self.L_sink)]
        ring = [newest - (newest - p) % self.ring_slots for p in self._ring()]
        return sinks + [p if p >= oldest else -1 for p in ring]

    def _ring(self) -> range:
        return range(self.L_sink, self.L_sink + self.ring_slots)
