"""The attention heads of one layer."""

from typing import NamedTuple

from snapexport.contract.layer_geometry import LayerGeometry


class LayerHeads(NamedTuple):
    """A layer's heads, and the widths of what its cache holds of a position.

    heads: of queries. query_dim: of the queries that score cached keys; latents are scored by the
    widths of key and value together. sinks: whether each head has a learned score beside those of
    the keys (gpt-oss). window: in positions; 0: none. chunk: attention sees
    the positions from the last multiple of it on; 0: all. cache_of: the layer whose cache it reads;
    -1: it does not attend.
    """

    heads: int
    kv_heads: int
    query_dim: int
    key_dim: int
    value_dim: int
    sinks: bool
    window: int
    chunk: int
    cache_of: int

    @property
    def reach(self) -> int:
        """Positions that attention sees at most; 0: all."""
        return self.window or self.chunk

    def ring(self, L_max: int) -> LayerGeometry | None:
        """The exact ring of a layer that sees a window or a chunk; None for others.

        A chunk may be longer than any prompt: its ring is not.
        """
        if self.window:
            # A ring of w cache slots is exact for a window of w positions.
            return LayerGeometry(0, self.window, 0)
        return LayerGeometry(0, min(self.chunk, L_max), 0, chunk=self.chunk) if self.chunk else None

    @property
    def widths(self) -> tuple[int, int]:
        """Of a cached key and of a cached value."""
        return self.key_dim, self.value_dim

    @property
    def widest(self) -> int:
        """The larger one of a query's width and a value's."""
        return max(self.query_dim, self.value_dim)

    @property
    def position_values(self) -> int:
        """Numbers that the cache holds for one position."""
        return self.kv_heads * sum(self.widths)

    @property
    def group(self) -> int:
        """Query heads of a KV head."""
        return self.heads // self.kv_heads
