"""Chooses the layers of a decoder that are compared, and says what comparing them takes.

They are the first one, one of each sort and the last one, and others while memory suffices. The
cost was measured on SmolLM3-3B's shapes, four layers of 300 MiB, two cores: 14 s and 4.1 GiB, of
which 2.4 are files in memory that the system takes back when it needs them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from snapexport.contract.memory import size, spelled
from snapexport.exporter.model import Decoder

MOST_BYTES = 5 << 30
"""Memory that a comparison takes at most."""

_COPIES = 3
"""Copies of the weights: the checkpoint's, transformers', and the graphs'."""
_FIXED_BYTES, _FIXED_SECONDS = 700 << 20, 7.0
_SECONDS_PER_BYTE = 7.0 / size("1GiB")
_USUAL = 4
"""Layers that are compared, if so few sorts are there and memory suffices."""
_CHEAP = 64 << 20
"""Bytes of weights, as fp32, up to which further layers cost nothing that counts."""


@dataclass(frozen=True)
class Cost:
    """The cost of a comparison: bytes of memory at its peak, and seconds on two cores."""

    nbytes: int
    seconds: float

    @classmethod
    def of(cls, weights: int) -> "Cost":
        """weights: bytes of the compared layers, as fp32."""
        return cls(_FIXED_BYTES + _COPIES * weights, _FIXED_SECONDS + _SECONDS_PER_BYTE * weights)

    @property
    def is_bearable(self) -> bool:
        return self.nbytes <= MOST_BYTES

    def __str__(self) -> str:
        return f"about {self.seconds:.0f} s, {spelled(self.nbytes)}"


def compared_places(decoder: Decoder, nbytes: Sequence[int]) -> list[int]:
    """Places of layers, ascending; none if even the fewest take too much memory.

    nbytes: of each layer's weights, as fp32.
    """
    chosen = set(fewest_places(decoder))
    if not Cost.of(_sum(nbytes, chosen)).is_bearable:
        return []
    for place in _spread(len(decoder.layers)):
        more = _with_caches(decoder, chosen | {place})
        taken = _sum(nbytes, more)
        if taken <= _CHEAP or (len(chosen) < _USUAL and Cost.of(taken).is_bearable):
            chosen = more
    return sorted(chosen)


def fewest_places(decoder: Decoder) -> list[int]:
    """The first layer, one of each sort, the last, and those whose caches they read."""
    count = len(decoder.layers)
    if decoder.layers_read_their_own:  # what they read is cut for all of them at once
        return list(range(count))
    return sorted(_with_caches(decoder, {0, count - 1, *_one_of_each_sort(decoder)}))


def _with_caches(decoder: Decoder, places: set[int]) -> set[int]:
    """The layers, and those whose caches they read."""
    return places | {decoder.layers[place].cache_of for place in places} - {-1}


def _sum(nbytes: Sequence[int], places: set[int]) -> int:
    return sum(nbytes[place] for place in places)


def _one_of_each_sort(decoder: Decoder) -> list[int]:
    """The first layer of each kind, and of each combination of what config.json lists by layer.

    The lists count too, since the kinds are what the probe took for different.
    """
    sorts: dict[tuple[object, ...], int] = {}
    listed = _listed(vars(decoder.config), len(decoder.layers))
    for place, layer in enumerate(decoder.layers):
        sort = layer.kind, *(column[place] for column in listed)
        sorts.setdefault(sort, place)
    return list(sorts.values())


def _listed(fields: Mapping[str, object], count: int) -> list[list[str]]:
    """A config's values for each layer, and for its lists of layers whether each is among them."""
    columns = []
    for name, value in fields.items():
        if not isinstance(value, list | tuple) or "layer" not in name:
            continue
        if len(value) == count:
            columns.append([repr(one) for one in value])
        elif value and all(type(one) is int and 0 <= one < count for one in value):
            columns.append([str(place in value) for place in range(count)])
    return columns


def _spread(count: int) -> list[int]:
    """All places, those in the middle of the others first."""
    step, found = count, dict[int, None]()
    while step > 1:
        step = -(-step // 2)
        found |= dict.fromkeys(range(0, count, step))
    return list(found)
