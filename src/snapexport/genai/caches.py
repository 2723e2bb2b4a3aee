"""Says how onnxruntime-genai holds the caches of a build: as keys and values of layers.

It takes two tensors of equal shape for each layer, float32 or float16, whose third dimension is the
same in all layers. So caches are paired by shape, and if they differ in cache slots all of them are
held flat. One more layer is a record of the calls so far, by which the graph knows a rewind.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Literal

from snapexport.contract import names
from snapexport.contract.manifest import GraphEntry, TensorSpec
from snapexport.genai.functions import RECORD
from snapexport.genai.parts import Shape

Part = Literal["key", "value"]
PARTS: tuple[Part, Part] = ("key", "value")
PAST, PRESENT = "past_key_values", "present"


@dataclass(frozen=True)
class Place:
    """A tensor that genai holds: `layer` and `part` in its names, and its shape.

    cache: the build's cache that it is; None: it fills the pair of one.
    """

    layer: int
    part: Part
    shape: Shape
    cache: TensorSpec | None = None

    @property
    def past(self) -> str:
        """The name of the joined graph's input."""
        return f"{PAST}.{self.layer}.{self.part}"

    @property
    def present(self) -> str:
        """The name of the joined graph's output."""
        return f"{PRESENT}.{self.layer}.{self.part}"


@dataclass(frozen=True)
class Caches:
    """Every tensor that genai holds. pasts: the cache inputs of the build's graphs."""

    pasts: tuple[TensorSpec, ...]

    @classmethod
    def of(cls, decode: GraphEntry) -> "Caches":
        """The caches of a build, by its decode graph."""
        return cls(tuple(one for one in decode.inputs if names.is_past(one.name)))

    @property
    def dtype(self) -> str:
        """NumPy's name of the type of all."""
        return self.pasts[0].dtype

    @property
    def is_flat(self) -> bool:
        """Whether caches are held as [1,Hkv,1,S*D], since they differ in S."""
        return len({past.shape[2] for past in self.pasts}) > 1

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """Where each cache is, in pairs of equal shape, and what fills a pair."""
        return tuple(
            Place(layer, part, shape, past)
            for layer, (shape, pair) in enumerate(self._pairs())
            for part, past in zip(PARTS, pair, strict=True)
        )

    def place_of(self, past: TensorSpec) -> Place:
        """Where one of the build's caches is."""
        return next(place for place in self.places if place.cache is past)

    @property
    def record(self) -> tuple[Place, Place]:
        """Where the record of calls is held, in every row of a layer: its digits, high and low."""
        layer, slots = len(self.places) // 2, 1 if self.is_flat else self.pasts[0].shape[2]
        high, low = (Place(layer, part, (1, 1, slots, RECORD)) for part in PARTS)
        return high, low

    @property
    def layers(self) -> int:
        """Layers that genai holds."""
        return len(self.places) // 2 + 1

    def _pairs(self) -> Iterator[tuple[Shape, Sequence[TensorSpec | None]]]:
        waiting: dict[Shape, TensorSpec] = {}
        for past in self.pasts:
            shape = self._in_genai(past)
            if other := waiting.pop(shape, None):
                yield shape, (other, past)
            else:
                waiting[shape] = past
        yield from ((shape, (past, None)) for shape, past in waiting.items())

    def _in_genai(self, past: TensorSpec) -> Shape:
        batch, heads, *rest = past.shape
        return (batch, heads, 1, prod(rest)) if self.is_flat else (batch, heads, *rest)
