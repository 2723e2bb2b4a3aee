"""MLX's affine weights: w = q * scale + bias, for groups of columns.

x.weight uint32 [N,K*bits/32], from the lowest bit on, x.scales and x.biases [N,K/group].
`quantization` of config.json has bits and group_size, and tables of modules that have others.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapexport.errors import UserError
from snapexport.exporter.weights.forms.integers import Form, IntegerRows
from snapexport.exporter.weights.readers.grouped import GroupedWeight, Groups, unpack, words_for
from snapexport.exporter.weights.readers.quantization import (
    FLOATS,
    ORIGINAL,
    OfParts,
    array,
    as_scales,
    group_size,
    numbers,
    require,
    require_matrix,
    require_value,
    require_values,
)
from snapexport.exporter.weights.tensor_file import Tensor
from snapexport.files.safetensors import TensorSpan

_BITS = (2, 3, 4, 5, 6, 8)


@dataclass(frozen=True)
class Mlx(OfParts):
    """sizes: bits and group size of the modules that have others than the rest (``)."""

    sizes: Mapping[str, tuple[int, int | None]]
    kind = "mlx"
    needed = ("scales", "biases")

    @classmethod
    def of(cls, given: dict[str, Any]) -> "Mlx":
        """Read `quantization` of config.json. Raises UserError."""
        modules = {name: one for name, one in given.items() if isinstance(one, dict)}
        whole = {name: one for name, one in given.items() if not isinstance(one, dict | bool)}
        return cls({name: _size(one) for name, one in {**modules, "": whole}.items()})

    def weight(self, stem: str, parts: dict[str, TensorSpan]) -> Tensor:
        """The integers of a matrix."""
        name, weight = f"{stem}.weight", parts["weight"]
        if len(weight.shape) == 3:
            raise UserError(f"the tensor {name} has the experts of a layer in MLX's way", ORIGINAL)
        rows, words = require_matrix(name, weight)
        bits, group = self.sizes.get(stem, self.sizes[""])
        columns = words * 32 // bits
        groups = Groups(columns, min(group or columns, columns))
        require(name, weight, ("U32",), (rows, words_for(columns, bits)))
        for part in self.needed:
            require(f"{stem}.{part}", parts[part], FLOATS, (rows, groups.count))
        return MlxWeight(
            name=name,
            count=rows,
            groups=groups,
            bits=bits,
            weights=weight,
            scales=parts["scales"],
            biases=parts["biases"],
        ).readable


def _size(given: dict[str, Any]) -> tuple[int, int | None]:
    given = dict(given)
    require_value("mode", given.pop("mode", "affine"), ("affine",))
    bits = numbers("bits", given.pop("bits", 4), _BITS)
    size = group_size(given.pop("group_size", 64))
    require_values("mlx", given, {})
    return bits, size


@dataclass(frozen=True, eq=False, kw_only=True)
class MlxWeight(GroupedWeight):
    """A matrix [N,K] with minima, which MLX calls biases."""

    weights: TensorSpan
    scales: TensorSpan
    biases: TensorSpan

    @property
    def shift(self) -> int:
        """Moves the integers to the middle of their container."""
        return (1 << (self.container - 1)) - self.middle

    @property
    def form(self) -> Form:
        return Form(self.container, self.groups.block, self.shift, minima=True)

    def rows(self, most: int) -> Iterator[IntegerRows]:
        """All rows in order, about `most` elements at a time. Raises UserError for bad values."""
        for start, end in self._parts(most):
            scales = as_scales(self.name, self._scales(start, end))
            minima = as_scales(self.name, array(self.biases)[start:end])
            q = self._integers(start, end) + np.uint8(self.shift)
            yield IntegerRows(q, self.groups.spread(scales), None, self.groups.spread(minima))

    def _integers(self, start: int, end: int) -> NDArray[np.uint8]:
        return unpack(array(self.weights)[start:end], self.bits, self.groups.columns)

    def _zeros(self, start: int, end: int) -> NDArray[np.uint8]:
        return np.zeros((end - start, self.groups.count), np.uint8)

    def _scales(self, start: int, end: int) -> NDArray[np.generic]:
        return array(self.scales)[start:end]
