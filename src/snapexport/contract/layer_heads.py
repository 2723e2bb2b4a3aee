"""The attention heads of one layer."""

from typing import NamedTuple


class LayerHeads(NamedTuple):
    """A layer's heads, and the widths of what its cache holds of a position.

    heads: of queries. query_dim: of the queries that score cached keys; latents are scored by the
    widths of key and value together. sinks: whether each head has a learned score beside those of
    the keys (gpt-oss). window: in positions; 0: none. cache_of: the layer whose cache it reads.
    """

    heads: int
    kv_heads: int
    query_dim: int
    key_dim: int
    value_dim: int
    sinks: bool
    window: int
    cache_of: int

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
