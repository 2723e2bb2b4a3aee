"""Unpacks integers of a few bits from words of 32 bits, from the lowest bit on."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from snapexport.errors import UserError
from snapexport.exporter.weights.forms.integers import (
    LARGEST_BLOCK,
    SMALLEST_BLOCK,
    Bits,
    Form,
    IntegerRows,
    IntegerWeight,
)
from snapexport.exporter.weights.readers.quantization import AGAIN, KEY, ORIGINAL, array, as_scales
from snapexport.exporter.weights.tensor_file import Calculated, Tensor
from snapexport.files.safetensors import TensorSpan

_WORD = 32


def unpack(words: NDArray[Any], bits: int, count: int) -> NDArray[np.uint8]:
    """The first `count` integers of each row of words [n,W]. They may go across words."""
    rows = len(words)
    packed = np.ascontiguousarray(words, "<u4")
    if 8 % bits == 0:
        shifts = np.arange(0, 8, bits).astype(np.uint8)
        mask = np.uint8((1 << bits) - 1)
        whole: NDArray[np.uint8] = (packed.view(np.uint8)[..., None] >> shifts) & mask
        return whole.reshape(rows, -1)[:, :count]
    return _across_words(packed, bits)[:, :count]


def words_for(count: int, bits: int) -> int:
    """Words that hold `count` integers."""
    return -(-count * bits // _WORD)


def _across_words(packed: NDArray[Any], bits: int) -> NDArray[np.uint8]:
    """32 integers are in `bits` words."""
    rows, width = packed.shape
    periods = np.pad(packed, ((0, 0), (0, -width % bits))).reshape(rows, -1, bits)
    found = np.empty((rows, periods.shape[1], _WORD), np.uint8)
    for place in range(_WORD):
        word, shift = divmod(place * bits, _WORD)
        value = periods[..., word] >> np.uint32(shift)
        if shift + bits > _WORD:
            value = value | periods[..., word + 1] << np.uint32(_WORD - shift)
        found[..., place] = value & np.uint32((1 << bits) - 1)
    return found.reshape(rows, -1)


def require_groups(name: str, scales: TensorSpan, groups: "Groups") -> None:
    """Raise UserError for scales [count,N] of groups of another size than the config says."""
    found = scales.shape[0] if scales.shape else 0
    if found and found != groups.count and groups.columns % found == 0:
        raise UserError(
            f"the tensor {name} has groups of {groups.columns // found} columns, and {KEY} says "
            f"{groups.size}",
            f"correct group_size in config.json, if the tensors are right; or {ORIGINAL}",
        )


T = TypeVar("T", bound=np.generic)


@dataclass(frozen=True)
class Groups:
    """columns: of a row. size: columns of a group, of which the last may have fewer."""

    columns: int
    size: int

    @property
    def count(self) -> int:
        return -(-self.columns // self.size)

    @property
    def block(self) -> int:
        """The largest power of two that divides a group; a group's own size where that is small."""
        whole = min(self.size, self.columns)
        power = min(whole & -whole, LARGEST_BLOCK)
        if power >= SMALLEST_BLOCK:
            return power
        return SMALLEST_BLOCK if self.count == 1 else self.size

    @property
    def are_blocks(self) -> bool:
        """Whether graphs can read integers in such blocks."""
        return SMALLEST_BLOCK <= self.block <= LARGEST_BLOCK and self.block.bit_count() == 1

    def spread(self, values: NDArray[T]) -> NDArray[T]:
        """The values of each block, of those for each group [n,count]."""
        blocks = -(-self.columns // self.block)
        if self.count == 1:
            return values.repeat(blocks, axis=1)
        return values.repeat(self.size // self.block, axis=1)[:, :blocks]


@dataclass(frozen=True, eq=False)
class Floats(Calculated):
    """A weight of integers in blocks that graphs can't read: it is always dequantized."""

    weight: IntegerWeight
    dtype: str = "F32"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.weight.shape

    def blocks(self, multiple: int, most: int) -> Iterator[NDArray[np.generic]]:
        """The elements in order, flat, in blocks of whole rows."""
        return self.weight.blocks(multiple, most)


_MOST = 1 << 22
"""Elements read at a time: that takes several times their memory."""
_STEP = 32
"""Rows that are read at a time are a multiple: zeros of 32 rows are in whole words."""


@dataclass(frozen=True, eq=False, kw_only=True)
class GroupedWeight(IntegerWeight):
    """A matrix [count,groups.columns] of integers of `bits` bits.

    g_idx: the group of each column; None: groups in order. symmetric: whether all zeros are the
    middle, whichever are stored.
    """

    name: str
    count: int
    groups: Groups
    bits: int
    g_idx: TensorSpan | None = None
    symmetric: bool = False

    @property
    def middle(self) -> int:
        """The zero of symmetric weights."""
        return 1 << self.bits - 1

    @property
    def contradicts(self) -> bool:
        """Whether the weight is symmetric, and other zeros are stored. Raises UserError."""
        if not self.symmetric:
            return False
        least, largest = self._range
        if least != largest:
            raise UserError(
                f"the tensor {self.name} has zero points from {least} to {largest}, and {KEY} says "
                f"that it is symmetric, which is a zero point of {self.middle}",
                f'{ORIGINAL}; or set "sym" to false there ("symmetric" of compressed-tensors; for '
                'AWQ "zero_point" to true), if the stored zero points are right',
            )
        return least != self.middle

    @property
    def shape(self) -> tuple[int, ...]:
        return self.count, self.groups.columns

    @property
    def container(self) -> Bits:
        """Bits of an integer in a graph."""
        return 4 if self.bits <= 4 else 8

    @property
    def form(self) -> Form:
        zero = None if self.shift is None else 1 << (self.container - 1)
        return Form(self.container, self.groups.block, zero, ordered=self.order is not None)

    @property
    def order(self) -> NDArray[np.int64] | None:
        """The weight's column for each column of q; None: in order."""
        return self._order

    @cached_property
    def zero(self) -> int | None:
        """The zero of all groups; None if there are several."""
        if self.symmetric:
            return self.middle
        least, largest = self._range
        return least if least == largest else None

    @cached_property
    def _range(self) -> tuple[int, int]:
        """The least and the largest stored zero."""
        parts = [self._zeros(*part) for part in self._parts(_MOST)]
        return min(int(one.min()) for one in parts), max(int(one.max()) for one in parts)

    @cached_property
    def shift(self) -> int | None:
        """The number that moves the one zero to the middle of the container.

        None if groups have several, or if integers would leave the container.
        """
        if self.zero is None:
            return None
        shift = (1 << (self.container - 1)) - self.zero
        return shift if 0 <= shift <= (1 << self.container) - (1 << self.bits) else None

    @property
    def without_slip(self) -> Self:
        """The weight; symmetric where all stored zeros are beside the middle, by an old mistake."""
        slipped = self.zero in (self.middle - 1, self.middle + 1)
        return replace(self, symmetric=True) if slipped else self

    @property
    def readable(self) -> "GroupedWeight | Floats":
        """The weight; dequantized where graphs can't read its blocks."""
        return self if self.groups.are_blocks else Floats(self)

    def rows(self, most: int) -> Iterator[IntegerRows]:
        """All rows in order, about `most` elements at a time. Raises UserError for bad values."""
        order, shift = self.order, self.shift
        for start, end in self._parts(most):
            q = self._integers(start, end)
            if order is not None:
                q = q[:, order]
            zeros = None
            if shift is None:
                zeros = self.groups.spread(np.ascontiguousarray(self._zeros(start, end)))
            elif shift:
                q = q + np.uint8(shift)
            scales = as_scales(self.name, self._scales(start, end))
            yield IntegerRows(q, self.groups.spread(scales), zeros)

    @cached_property
    def _order(self) -> NDArray[np.int64] | None:
        if self.g_idx is None:
            return None
        of_columns = np.asarray(array(self.g_idx)).astype(np.int64)
        order = np.argsort(of_columns, kind="stable")
        in_order = np.arange(len(of_columns)) // self.groups.size
        if not np.array_equal(of_columns[order], in_order):
            raise UserError(
                f"g_idx of the tensor {self.name} does not give each of its {self.groups.count} "
                f"groups {self.groups.size} columns",
                AGAIN,
            )
        return None if np.array_equal(of_columns, in_order) else order

    def _parts(self, most: int) -> Iterator[tuple[int, int]]:
        step = max(1, min(most, _MOST) // self.groups.columns // _STEP) * _STEP
        for start in range(0, self.count, step):
            yield start, min(start + step, self.count)

    @abstractmethod
    def _integers(self, start: int, end: int) -> NDArray[np.uint8]:
        """Some rows [n,K], in the order of the file's columns."""

    @abstractmethod
    def _zeros(self, start: int, end: int) -> NDArray[np.uint8]:
        """Their zeros [n,groups]."""

    @abstractmethod
    def _scales(self, start: int, end: int) -> NDArray[np.generic]:
        """Their scales [n,groups]."""


def contradictions(tensors: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Say which symmetric weights have other zeros stored, which are not read. Raises UserError."""
    weights = (one.weight if isinstance(one, Floats) else one for one in tensors.values())
    found = [one for one in weights if isinstance(one, GroupedWeight) and one.contradicts]
    if not found:
        return ()
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return (
        f"{found[0].name}{more}: the stored zero points contradict the symmetry that {KEY} "
        f"says; weights are read as (q - {found[0].middle}) * scale",
    )
