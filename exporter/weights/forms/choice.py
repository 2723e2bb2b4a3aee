"""Chooses the weights that a build holds in few bits, and their form (`--weights`).

TensorRT takes no zero points: it gets integers around zero, in whole blocks, as DequantizeLinear
reads them. A block's own zero point z becomes a minimum, (middle - z) * scale, which a product of
the sums of blocks adds. The rows of experts are read without such products.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import gcd
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from snapexport.exporter.weights.forms.fp8 import Fp8Weight, as_fp8
from snapexport.exporter.weights.forms.integers import (
    SMALLEST_BLOCK,
    Form,
    IntegerRows,
    IntegerStack,
    IntegerWeight,
    as_integers,
)
from snapexport.exporter.weights.forms.parts import TRANSPOSED, Weight
from snapexport.exporter.weights.forms.rounding import Inputs, RoundedWeight
from snapexport.exporter.weights.tensor_file import Tensor
from snapexport.files.dtypes import DType

if TYPE_CHECKING:
    from snapexport.exporter.model import Decoder


@dataclass(frozen=True)
class Signed(IntegerWeight):
    """A weight with minima in the place of zero points."""

    weight: IntegerWeight

    @property
    def shape(self) -> tuple[int, ...]:
        return self.weight.shape

    @property
    def form(self) -> Form:
        return signed_form(self.weight.form)

    @property
    def order(self) -> NDArray[np.int64] | None:
        return self.weight.order

    def rows(self, most: int) -> Iterator[IntegerRows]:
        """All rows in order."""
        form = self.weight.form
        for some in self.weight.rows(most):
            if not self.form.minima:
                yield some
                continue
            zeros = np.float32(form.zero or 0) if some.zeros is None else some.zeros
            moved = some.scales * (np.float32(form.middle) - zeros)
            minima = moved if some.minima is None else some.minima + moved
            yield IntegerRows(some.q, some.scales, None, minima)


def signed_form(form: Form) -> Form:
    """The form of integers of a checkpoint around zero."""
    minima = form.minima or form.zero is None
    return replace(form, zero=form.middle, minima=minima, signed=True)


def symmetric(form: Form, columns: int) -> Form | None:
    """The form to which floats are rounded, in blocks that divide a row; None: there are none."""
    block = gcd(form.block, columns)
    fits = block >= SMALLEST_BLOCK
    return replace(form, block=block, zero=form.middle, signed=True) if fits else None


def refusal(form: Form, shape: tuple[int, ...]) -> str | None:
    """Why a weight can't be read so; None: it can."""
    if shape[-1] % form.block:
        return "rows that end within a block"
    if len(shape) > 2 and (form.minima or form.ordered or form.zero is None):
        return "experts with zero points, minima or an order of columns"
    return None


def to_signed(weight: Weight | None) -> Weight | None:
    """The weight around zero, if it can be read so."""
    if weight is None or refusal(weight.form, weight.shape):
        return None
    if isinstance(weight, IntegerStack):
        return IntegerStack(tuple(Signed(part) for part in weight.parts))
    return Signed(weight) if isinstance(weight, IntegerWeight) else weight


BLOCK = 64
INT4 = Form(4, BLOCK, None)
INT8 = Form(8, BLOCK, None)
_SENSITIVE = "k_proj.weight", "v_proj.weight"
"""Keys and values of few heads: all query heads of a group share their errors."""
_FEWER = 2
"""How many times fewer rows than columns they must have: then they are a small share of a model."""
_DEEP = 16
"""Layers from which on four down projections are a small share."""


@dataclass(frozen=True)
class Exact:
    """Says which products don't round what they read, where the target rounds it to 8 bits.

    They are a small share of a model, and cause most of what rounding costs: keys and values of few
    heads, and those in `outer`.
    """

    outer: Collection[str]

    def of(self, name: str, weight: Weight) -> bool:
        """name: of a matrix [N,K]."""
        return name in self.outer or _of_few_heads(name, weight.shape)


def exact(flag: str | None, decoder: "Decoder") -> Exact | None:
    """For a value of `--weights`. None: of no product, since int4 costs far more than rounding.

    No layer evens out the errors of the head and of the last down projection.
    """
    if flag not in ("keep", "int8"):
        return None
    return Exact((decoder.embedding, decoder.head, _down(decoder, len(decoder.layers) - 1)))


def _of_few_heads(name: str, shape: tuple[int, ...]) -> bool:
    return name.endswith(_SENSITIVE) and shape[0] * _FEWER <= shape[1]


class Choice(Protocol):
    """Says which weights a build holds in few bits."""

    def of(self, name: str, tensor: Tensor) -> Weight | Fp8Weight | None:
        """A checkpoint's tensor in few bits; None: it is written as the build's dtype.

        tensor: a matrix of a linear layer or an embedding [N,K], or a stack of experts [E,N,K].
        """


@dataclass(frozen=True)
class Kept:
    """Integers of the checkpoint stay as they are (`--weights keep`).

    signed: around zero. floats: what it has as floats of 4 bits stays such.
    """

    signed: bool = False
    floats: bool = False

    def of(self, name: str, tensor: Tensor) -> Weight | None:
        """The integers as they are stored."""
        found = as_integers(tensor)
        if self.floats and isinstance(found, IntegerWeight) and (floats := found.floats):
            return floats
        return to_signed(found) if self.signed else found


@dataclass(frozen=True)
class KeptFp8:
    """Weights of the checkpoint in fp8 stay so (`--weights fp8`). dtype: of the build."""

    dtype: DType

    def of(self, name: str, tensor: Tensor) -> Fp8Weight | None:
        """The bytes and scales as they are stored."""
        return as_fp8(tensor, self.dtype)


@dataclass(frozen=True)
class Rounded:
    """Everything is rounded to a form, unless the checkpoint has it in as few bits.

    inputs: what layers read, where it is known. wide: weights that get 8 bits in any case. kept:
    the choice of what the checkpoint has.
    """

    form: Form
    inputs: Mapping[str, Inputs] = field(default_factory=dict)
    wide: Collection[str] = ()
    kept: Kept = Kept()

    def of(self, name: str, tensor: Tensor) -> Weight | None:
        """The integers of the checkpoint, or rounded ones."""
        form = INT8 if name in self.wide else _form(self.form, name, tensor.shape)
        found = self.kept.of(name, tensor)
        if found and found.form.bits <= form.bits:
            return found
        rounded = symmetric(form, tensor.shape[-1]) if self.kept.signed else form
        inputs = self.inputs.get(name.removesuffix(TRANSPOSED))
        return RoundedWeight(name, tensor, rounded, inputs) if rounded else None


def _form(form: Form, name: str, shape: tuple[int, ...]) -> Form:
    """The form of one weight: wide where errors weigh more than bits, narrow blocks of experts."""
    if len(shape) > 2:
        return replace(form, block=_block_of_experts(form.block, name, shape))
    return INT8 if _of_few_heads(name, shape) else form


def _block_of_experts(largest: int, name: str, shape: tuple[int, ...]) -> int:
    """Both stacks have one block, which divides the experts' width and the hidden size."""
    _, rows, columns = shape
    other = rows // 2 if "gate" in name.rpartition(".")[2] else rows
    sizes = (block for block in (largest, largest // 2) if columns % block == other % block == 0)
    return next(sizes, largest)


def of_flag(
    flag: str | None,
    decoder: "Decoder",
    inputs: Mapping[str, Inputs] = MappingProxyType({}),
    *,
    dtype: DType = "fp32",
    signed: bool = False,
) -> Choice:
    """The choice of a value of `--weights`. inputs: what layers read, where it is known.

    dtype: of the build. signed: around zero, as `TargetCapabilities.signed_integers` says.
    """
    if flag == "fp8":
        return KeptFp8(dtype)
    if flag == "keep":
        return Kept(signed, floats=signed)
    form, wide = (INT8, ()) if flag == "int8" else (INT4, _outer(decoder))
    return Rounded(form, inputs, wide, Kept(signed))


def _outer(decoder: "Decoder") -> list[str]:
    """Down projections of a deep model's first and last layers: they write its largest values."""
    count = len(decoder.layers)
    places = (0, 1, count - 2, count - 1) if count >= _DEEP else ()
    return [_down(decoder, place) for place in places]


def _down(decoder: "Decoder", place: int) -> str:
    return f"{decoder.names.layers}.{place}.mlp.down_proj.weight"


def notes(
    tensors: Mapping[str, Tensor],
    read: Iterable[str],
    integers: Mapping[str, Weight],
    dtype: str,
    *,
    signed: bool = False,
) -> list[str]:
    """Say what becomes of integers of a checkpoint that are not kept.

    read: names of tensors and parts that graphs read. integers: what they read as such. signed:
    around zero.
    """
    again = [
        found.form.bits
        for name, weight in integers.items()
        if isinstance(weight, RoundedWeight)
        and (found := as_integers(tensors[name.removesuffix(TRANSPOSED)]))
    ]
    others = (as_integers(tensors[name]) for name in set(read) if name in tensors)
    dequantized = Counter(
        refusal(one.form, one.shape) if signed else None for one in others if one is not None
    )
    texts = []
    if again:
        texts.append(
            f"{_matrices(len(again))} rounded a second time: the checkpoint has integers in "
            f"containers of {max(again)} bits; --weights keep leaves them as they are"
        )
    for reason, count in dequantized.items():
        text = f"{_matrices(count)} dequantized to {dtype}, integers in the checkpoint"
        texts.append(text + (f": the target reads none of {reason}" if reason else ""))
    return texts


def _matrices(count: int) -> str:
    return f"{count} matrices are" if count > 1 else "1 matrix is"
