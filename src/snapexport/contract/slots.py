"""The cache slots of each cache, and the arithmetic of which position is where.

Positions are 0-based. A cache has S = L_sink + L_recent + K cache slots:

    [0, L_sink)                    the first positions (StreamingLLM's attention sinks)
    [L_sink, L_sink + L_recent)    a ring of the newest positions
    [L_sink + L_recent, S)         the prompt positions that the vote kept, ascending

Of a prompt of S tokens or fewer nothing is compressed: position p is at slot p, and decode's ring
is [L_sink, S). The valid slots are always a contiguous prefix, so no mask is needed.

A step of q > 1 tokens may have to forget some of them. So the ring then has spare slots, and graphs
get the position that each cache slot holds.

A static graph has one size for each cache. So KV heads of a layer that keep different numbers of
positions are in head groups, each with a cache of its own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, TypeVar

from snapexport.errors import UserError, require_at_least

Value = TypeVar("Value")
Column: TypeAlias = Value | tuple[Value, ...]


def folded(values: Sequence[Value]) -> Column[Value]:
    """One value if all are the same, else all of them."""
    return values[0] if len(set(values)) == 1 else tuple(values)


def value_at(column: Column[Value], index: int) -> Value:
    """The value of a layer, or of a cache."""
    return column[index] if isinstance(column, tuple) else column


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
        """The cache slots that a step after a prompt of that length writes to."""
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


HeadGroups = tuple[tuple[tuple[int, ...], ...], ...]
"""The KV heads of each group of each layer, ascending. Empty: every layer has one cache."""


class CacheHeads(NamedTuple):
    """The KV heads of one cache. cache: its number in the names of tensors, that of its layer.

    With head groups it is the index in the order of layers and their groups. layer: of the model.
    heads: ascending; None: all heads of the layer.
    """

    cache: int
    layer: int
    heads: tuple[int, ...] | None

    def count(self, kv_heads: int) -> int:
        """Its KV heads. kv_heads: of its layer."""
        return kv_heads if self.heads is None else len(self.heads)


def caches_of(groups: HeadGroups) -> Iterator[CacheHeads]:
    """Every cache, in order."""
    index = 0
    for layer, of_layer in enumerate(groups):
        for heads in of_layer:
            yield CacheHeads(index, layer, heads if len(of_layer) > 1 else None)
            index += 1


@dataclass(frozen=True, slots=True)
class Slots:
    """The cache slots of each cache. Raises UserError for invalid values.

    num_layers: of the model. L_sink, L_recent, K: of each cache. head_groups: the KV heads of each
    cache of each layer; empty: each layer has one cache. cache_of: the layer whose caches each
    layer reads, its own or an earlier one's; -1: none; empty: each its own. chunk: as in
    `LayerGeometry`.
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
        self._require_sources()
        for name, value in self._per_cache().items():
            self._require_caches(name, value)

    def _require_sources(self) -> None:
        sources = self.cache_of
        has_layers = len(sources) == self.num_layers
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

    def source(self, layer: int) -> int:
        """The layer whose caches a layer reads."""
        return self.cache_of[layer] if self.cache_of else layer

    def numbers(self) -> Iterator[tuple[int, dict[int, CacheHeads]]]:
        """Each layer that attends, and by number the caches that it reads.

        The number is the cache's own in the layer that writes it. In layers that read another's
        caches it is the layer's, or with head groups a further one.
        """
        further = self.num_caches
        for layer in range(self.num_layers):
            source = self.source(layer)
            read = self.caches_of(source)
            if source == layer or not self.head_groups:
                yield layer, {one.cache if source == layer else layer: one for one in read}
            else:
                yield layer, {further + place: one for place, one in enumerate(read)}
                further += len(read)

    @property
    def read_by(self) -> dict[int, int]:
        """The number of the cache that is read under each number of `numbers`."""
        found = (read.items() for _, read in self.numbers())
        return {number: one.cache for read in found for number, one in read}

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
