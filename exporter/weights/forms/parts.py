"""Stores a weight of integers in parts, a file each.

    .int4 | .int8   uint8 [N,blocks,block * bits / 8]: of 4 bits, integer 2i of a block is in the
                    low half of byte i
    .signed4        uint8 [N,K/2], and .signed8, int8 [N,K]: the same less 2^(bits - 1), in their
                    place (signed.py)
    .fp4            uint8 [N,K/2], floats e2m1 in their place (Fp4)
    .scales         [N,blocks], in the build's dtype; of .fp4 in fp8
    .factor         fp32, of .fp4: one for all scales
    .zeros          uint8 [N, blocks * bits / 8], as above, rounded up; where blocks differ in it
    .minima         [N,blocks], in the build's dtype
    .order          int64 [K]: the weight's column for each column of the integers

w = (q - zero) * scale + minimum; without .zeros the zero is 2^(bits - 1). K is padded to
whole blocks. Of a stack [E,N,K] the parts are [E,N,...], and integers lie as [E,N,K * bits / 8]:
this is the layout of MatMulNBits and QMoE.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from snapexport.exporter.weights.forms.integers import (
    Bits,
    Form,
    Fp4,
    IntegerRows,
    IntegerStack,
    IntegerWeight,
)
from snapexport.exporter.weights.tensor_file import BLOCK, Progress, WeightWriter, cast
from snapexport.files.dtypes import BY_SAFETENSORS
from snapexport.files.safetensors import TensorSpan

SCALES, ZEROS, MINIMA, ORDER, TRANSPOSED = ".scales", ".zeros", ".minima", ".order", ".transposed"
FP4, FACTOR = ".fp4", ".factor"
PACKED: Mapping[Bits, str] = {4: ".int4", 8: ".int8"}
SIGNED: Mapping[Bits, str] = {4: ".signed4", 8: ".signed8"}
_ENDS = (*PACKED.values(), *SIGNED.values(), FP4, SCALES, ZEROS, MINIMA, ORDER, FACTOR)
Weight = IntegerWeight | IntegerStack | Fp4


def whole(part: str) -> str:
    """The tensor of a part; other names are returned unchanged."""
    stem, dot, end = part.rpartition(".")
    return stem if dot + end in _ENDS else part


def packed_end(form: Form) -> str:
    """The ending of the part that holds the integers."""
    return FP4 if form.floats else (SIGNED if form.signed else PACKED)[form.bits]


def shapes(form: Form, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """{ending of a part: its shape}, of a tensor [N,K] or [E,N,K]."""
    *leading, columns = shape
    blocks = form.count(columns)
    packed = (blocks, form.block * form.bits // 8)
    in_blocks = len(leading) == 1 and not form.signed
    found = {
        packed_end(form): (*leading, *(packed if in_blocks else (prod(packed),))),
        SCALES: (*leading, blocks),
    }
    if form.zero is None:
        found[ZEROS] = (*leading, -(-blocks * form.bits // 8))
    if form.minima:
        found[MINIMA] = (*leading, blocks)
    if form.ordered:
        found[ORDER] = (columns,)
    if form.floats:
        found[FACTOR] = ()
    return found


def _dtype(end: str, dtype: str) -> str:
    own = {SCALES: dtype, MINIMA: dtype, ORDER: "I64", SIGNED[8]: "I8"}
    return own.get(end, "U8")


def write(
    name: str, weight: Weight, dtype: str, directory: Path, progress: Progress
) -> Iterator[WeightWriter]:
    """Write a file for each part. Raises UserError for values that can't be read."""
    if isinstance(weight, Fp4):
        yield from _copied(name, weight, directory, progress)
        return
    form, of_parts = weight.form, shapes(weight.form, weight.shape)
    small: dict[str, list[bytes]] = {end: [] for end in (SCALES, ZEROS, MINIMA)}
    packed = packed_end(form)
    dtype_of_packed, shape = _dtype(packed, dtype), of_parts.pop(packed)
    with WeightWriter(directory, name + packed, dtype_of_packed, shape, progress) as file:
        for rows in weight.rows(BLOCK):
            file.write(_padded(rows.q, form).tobytes())
            for end, values in _small_parts(name, rows, form, dtype).items():
                small[end].append(values.tobytes())
    yield file
    if weight.order is not None:
        small[ORDER] = [weight.order.astype(np.int64).tobytes()]
    for end, shape in of_parts.items():
        with WeightWriter(directory, name + end, _dtype(end, dtype), shape, progress) as file:
            for data in small[end]:
                file.write(data)
        yield file


def _copied(name: str, weight: Fp4, directory: Path, progress: Progress) -> Iterator[WeightWriter]:
    for end, span in ((FP4, weight.values), (SCALES, weight.scales)):
        with WeightWriter(directory, name + end, span.dtype, span.shape, progress) as file:
            file.copy(span)
        yield file
    with WeightWriter(directory, name + FACTOR, "F32", (), progress) as file:
        file.write(weight.factor.tobytes())
    yield file


def _padded(q: NDArray[np.uint8], form: Form) -> NDArray[np.uint8]:
    """The integers in whole blocks, as they are stored."""
    rest = -q.shape[1] % form.block
    if rest:
        q = np.pad(q, ((0, 0), (0, rest)), constant_values=form.zero or 0).astype(np.uint8)
    return _packed(q ^ np.uint8(form.middle) if form.signed else q, form.bits)


def _packed(values: NDArray[np.uint8], bits: Bits) -> NDArray[np.uint8]:
    """Rows of integers as rows of bytes."""
    if bits == 8:
        return values
    even = np.pad(values, ((0, 0), (0, values.shape[1] % 2)))
    both = even[:, 0::2] | np.left_shift(even[:, 1::2], 4, dtype=np.uint8)
    return both.astype(np.uint8, copy=False)


def _small_parts(
    name: str, rows: IntegerRows, form: Form, dtype: str
) -> dict[str, NDArray[np.generic]]:
    """The other parts of some rows. Minima are those of integers around 2^(bits - 1)."""
    found: dict[str, NDArray[np.generic]] = {SCALES: cast(name, rows.scales, dtype)}
    if form.signed:
        cast(name, rows.scales * np.float32(form.middle), dtype)  # the largest value in a graph
    if rows.zeros is not None:
        found[ZEROS] = _packed(rows.zeros, form.bits)
    if rows.minima is not None:
        assert form.zero is not None
        shift = np.float32(form.middle - form.zero)
        found[MINIMA] = cast(name, rows.minima + rows.scales * shift, dtype)
    return found


def label(form: Form) -> str:
    """A form, such as `int4-32+minima`: 4 bits, blocks of 32."""
    if form.floats:
        return f"fp{form.bits}-{form.block}"
    extra = "+zeros" * (form.zero is None) + "+minima" * form.minima + "+order" * form.ordered
    return f"int{form.bits}-{form.block}{extra}"


def matrices(placed: Mapping[str, TensorSpan], integers: Mapping[str, Weight]) -> dict[str, int]:
    """{form or dtype: how many matrices, and stacks of experts, have it}."""
    forms = Counter(label(weight.form) for weight in integers.values())
    for name, span in placed.items():
        if len(span.shape) > 1 and whole(name) not in integers:
            forms[_flag(span.dtype)] += 1
    return dict(forms.most_common())


def bits_per_weight(placed: Mapping[str, TensorSpan], integers: Mapping[str, Weight]) -> float:
    """Stored bits of all matrices, over their elements. What is stored in two forms counts once."""
    elements = {name: prod(weight.shape) for name, weight in integers.items()}
    nbytes = 0
    for name, span in placed.items():
        if whole(name) in integers:
            nbytes += span.nbytes
        elif len(span.shape) > 1:
            nbytes += span.nbytes
            elements.setdefault(name, prod(span.shape))
    return round(8 * nbytes / sum(elements.values()), 3)


def _flag(dtype: str) -> str:
    found = BY_SAFETENSORS[dtype]
    return found.flag or found.numpy
