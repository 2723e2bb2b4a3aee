"""The cache slots of each cache: of each layer, or of each group of its KV heads."""

from collections.abc import Sequence
from dataclasses import dataclass

from snapexport.contract.columns import Column, value_at
from snapexport.contract.head_groups import CacheHeads, HeadGroups, caches_of, require_groups
from snapexport.contract.layer_geometry import LayerGeometry
from snapexport.errors import UserError, require_at_least


@dataclass(frozen=True, slots=True)
class Slots:
    """The cache slots of each cache. Raises UserError for invalid values.

    num_layers: of the model. L_sink, L_recent, K: of each cache. head_groups: the KV heads of each
    cache; empty: each layer has one cache.
    """

    num_layers: int
    L_sink: Column[int]
    L_recent: Column[int]
    K: Column[int]
    head_groups: HeadGroups = ()

    def __post_init__(self) -> None:
        require_groups(self.head_groups, self.num_layers)
        for flag, value in self._per_cache().items():
            self._require_caches(flag, value)

    def _per_cache(self) -> dict[str, Column[int]]:
        return {"--L-sink": self.L_sink, "--L-recent": self.L_recent, "--K": self.K}

    def _require_caches(self, flag: str, value: Column[int]) -> None:
        values: Sequence[int] = (value,) if isinstance(value, int) else value
        if not isinstance(value, int) and len(values) != self.num_caches:
            what = "head groups" if self.head_groups else "layers"
            raise UserError(
                f"{flag} has {len(values)} values, the model has {self.num_caches} {what}",
                "give one value, or one for each layer",
            )
        for entry in values:
            require_at_least(flag, entry, 0)

    @property
    def num_caches(self) -> int:
        """Caches of all layers."""
        return sum(map(len, self.head_groups)) if self.head_groups else self.num_layers

    @property
    def caches(self) -> tuple[CacheHeads, ...]:
        """The layer and the KV heads of each cache."""
        every = tuple(CacheHeads(layer, layer, None) for layer in range(self.num_layers))
        return tuple(caches_of(self.head_groups)) or every

    def caches_of(self, layer: int) -> tuple[CacheHeads, ...]:
        """The caches of a layer of the model."""
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
            )
            for index in range(self.num_caches)
        )
