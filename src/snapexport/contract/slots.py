"""The cache slots of each cache: of each layer, or of each group of its KV heads."""

from collections.abc import Sequence
from dataclasses import dataclass

from snapexport.contract.head_groups import CacheHeads, HeadGroups, caches_of, require_groups
from snapexport.contract.layer_geometry import LayerGeometry
from snapexport.errors import UserError, require_at_least

PerCache = int | tuple[int, ...]
"""One value for all caches, or one for each."""


@dataclass(frozen=True, slots=True)
class Slots:
    """The cache slots of each cache. Raises UserError for invalid values.

    num_layers: of the model. L_sink, L_recent, K: of each cache. head_groups: the KV heads of each
    cache; empty: each layer has one cache.
    """

    num_layers: int
    L_sink: PerCache
    L_recent: PerCache
    K: PerCache
    head_groups: HeadGroups = ()

    def __post_init__(self) -> None:
        require_groups(self.head_groups, self.num_layers)
        for flag, value in self._per_cache().items():
            self._require_caches(flag, value)

    def _per_cache(self) -> dict[str, PerCache]:
        return {"--L-sink": self.L_sink, "--L-recent": self.L_recent, "--K": self.K}

    def _require_caches(self, flag: str, value: PerCache) -> None:
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

    def heads_held(self, kv_heads: int) -> tuple[int, ...]:
        """The number of KV heads of each cache, of a model with `kv_heads` a layer."""
        every = (cache.heads for cache in self.caches)
        return tuple(kv_heads if heads is None else len(heads) for heads in every)

    def shapes(self, spare: int) -> tuple[LayerGeometry, ...]:
        """The slots of each cache, whose ring has `spare` slots beyond L_recent."""
        columns = (self._column(value) for value in self._per_cache().values())
        return tuple(
            LayerGeometry(L_sink, L_recent, K, spare)
            for L_sink, L_recent, K in zip(*columns, strict=True)
        )

    def _column(self, value: PerCache) -> tuple[int, ...]:
        return (value,) * self.num_caches if isinstance(value, int) else value
