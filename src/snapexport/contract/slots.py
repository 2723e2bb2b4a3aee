"""The cache slots of each cache: of each layer, or of each group of its KV heads."""

from collections.abc import Sequence
from dataclasses import dataclass

from snapexport.contract.columns import Column, folded, value_at
from snapexport.contract.head_groups import CacheHeads, HeadGroups, caches_of, require_groups
from snapexport.contract.layer_geometry import LayerGeometry
from snapexport.errors import UserError, require_at_least


@dataclass(frozen=True, slots=True)
class Slots:
    """The cache slots of each cache. Raises UserError for invalid values.

    num_layers: of the model. L_sink, L_recent, K: of each cache. head_groups: the KV heads of each
    cache; empty: each layer has one cache. cache_of: the layer whose cache each layer reads, its
    own or an earlier one's; -1: none; empty: each its own. chunk: as in `LayerGeometry`.
    """

    num_layers: int
    L_sink: Column[int]
    L_recent: Column[int]
    K: Column[int]
    head_groups: HeadGroups = ()
    cache_of: tuple[int, ...] = ()
    chunk: Column[int] = 0

    @classmethod
    def of(
        cls, shapes: Sequence[LayerGeometry], num_layers: int, cache_of: tuple[int, ...] = ()
    ) -> "Slots":
        """The slots of caches of these shapes, one for each layer that has one."""
        L_sink, L_recent, K, chunk = (
            folded([getattr(shape, name) for shape in shapes])
            for name in ("L_sink", "L_recent", "K", "chunk")
        )
        return cls(num_layers, L_sink, L_recent, K, cache_of=cache_of, chunk=chunk)

    def __post_init__(self) -> None:
        require_groups(self.head_groups, self.num_layers)
        self._require_sources()
        for name, value in self._per_cache().items():
            self._require_caches(name, value)

    def _require_sources(self) -> None:
        sources = self.cache_of
        has_layers = len(sources) == (0 if self.head_groups else self.num_layers)
        is_earlier = all(s == -1 or sources[s] == s <= layer for layer, s in enumerate(sources))
        if sources and not (has_layers and is_earlier):
            raise UserError(
                "the layers do not read caches of their own, or of earlier layers that have some",
                "give none, or one source for each layer",
            )

    def _per_cache(self) -> dict[str, Column[int]]:
        return {"--L-sink": self.L_sink, "--L-recent": self.L_recent, "--K": self.K} | {
            "attention chunks": self.chunk
        }

    def _require_caches(self, flag: str, value: Column[int]) -> None:
        values: Sequence[int] = (value,) if isinstance(value, int) else value
        if not isinstance(value, int) and len(values) != self.num_caches:
            what = "head groups" if self.head_groups else "layers with caches"
            raise UserError(
                f"{flag} has {len(values)} values, the model has {self.num_caches} {what}",
                "give one value, or one for each layer",
            )
        for entry in values:
            require_at_least(flag, entry, 0)

    @property
    def num_caches(self) -> int:
        """Caches of all layers."""
        return len(self.caches)

    @property
    def caches(self) -> tuple[CacheHeads, ...]:
        """The number, the layer and the KV heads of each cache."""
        if self.head_groups:
            return tuple(caches_of(self.head_groups))
        own = (layer for layer in range(self.num_layers) if self.source(layer) == layer)
        return tuple(CacheHeads(layer, layer, None) for layer in own)

    def source(self, number: int) -> int:
        """The number of the cache that a layer reads. A group of heads reads its own."""
        return self.cache_of[number] if self.cache_of else number

    def caches_of(self, layer: int) -> tuple[CacheHeads, ...]:
        """A layer's own caches."""
        return tuple(cache for cache in self.caches if cache.layer == layer)

    def heads_held(self, kv_heads: Sequence[int]) -> tuple[int, ...]:
        """The number of KV heads of each cache. kv_heads: of each layer."""
        return tuple(cache.count(kv_heads[cache.layer]) for cache in self.caches)

    def shapes(self, spare: int) -> tuple[LayerGeometry, ...]:
        """The slots of each cache, whose ring has `spare` slots beyond L_recent."""
        return tuple(
            LayerGeometry(
                value_at(self.L_sink, index),
                value_at(self.L_recent, index),
                value_at(self.K, index),
                spare,
                value_at(self.chunk, index),
            )
            for index in range(self.num_caches)
        )
