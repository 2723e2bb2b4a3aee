"""Stores a weight of few bits in parts, a file each, and reads them back as numbers.

    .int4 | .int8   uint8 [N,blocks,block * bits / 8]: of 4 bits, integer 2i of a block is in the
                    low half of byte i
    .signed4        uint8 [N,K/2], and .signed8, int8 [N,K]: the same less 2^(bits - 1), in their
                    place (`choice.py`)
    .fp4            uint8 [N,K/2], floats e2m1 in their place (Fp4)
    .scales         [N,blocks], in the build's dtype; of .fp4 in fp8
    .factor         fp32, of .fp4: one for all scales
    .zeros          uint8 [N, blocks * bits / 8], as above, rounded up; where blocks differ in it
    .minima         [N,blocks], in the build's dtype
    .order          int64 [K]: the weight's column for each column of the integers

w = (q - zero) * scale + minimum; without .zeros the zero is 2^(bits - 1). K is padded to
whole blocks. Of a stack [E,N,K] the parts are [E,N,...], and integers are [E,N,K * bits / 8]:
this is the layout of MatMulNBits and QMoE.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray

from snapexport.exporter.weights.forms.integers import (
    E2M1,
    Bits,
    Form,
    Fp4,
    IntegerRows,
    IntegerStack,
    IntegerWeight,
)
from snapexport.exporter.weights.readers import read_quantization
from snapexport.exporter.weights.tensor_file import BLOCK, Progress, WeightWriter, cast
from snapexport.files.dtypes import BY_SAFETENSORS
from snapexport.files.safetensors import TensorSpan

SCALES, ZEROS, MINIMA, ORDER, TRANSPOSED = ".scales", ".zeros", ".minima", ".order", ".transposed"
FP4, FACTOR, ROW_SCALES = ".fp4", ".factor", ".row_scales"
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
        yield from _copy(name, weight, directory, progress)
        return
    form, of_parts = weight.form, shapes(weight.form, weight.shape)
    small: dict[str, list[bytes]] = {end: [] for end in (SCALES, ZEROS, MINIMA)}
    packed = packed_end(form)
    dtype_of_packed, shape = _dtype(packed, dtype), of_parts.pop(packed)
    with WeightWriter(directory, name + packed, dtype_of_packed, shape, progress) as file:
        for rows in weight.rows(BLOCK):
            file.write(_pad(rows.q, form).tobytes())
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


def _copy(name: str, weight: Fp4, directory: Path, progress: Progress) -> Iterator[WeightWriter]:
    for end, span in ((FP4, weight.values), (SCALES, weight.scales)):
        with WeightWriter(directory, name + end, span.dtype, span.shape, progress) as file:
            file.copy(span)
        yield file
    with WeightWriter(directory, name + FACTOR, "F32", (), progress) as file:
        file.write(weight.factor.tobytes())
    yield file


def _pad(q: NDArray[np.uint8], form: Form) -> NDArray[np.uint8]:
    """The integers in whole blocks, as they are stored."""
    rest = -q.shape[1] % form.block
    if rest:
        q = np.pad(q, ((0, 0), (0, rest)), constant_values=form.zero or 0).astype(np.uint8)
    return _pack(q ^ np.uint8(form.middle) if form.signed else q, form.bits)


def _pack(values: NDArray[np.uint8], bits: Bits) -> NDArray[np.uint8]:
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
        found[ZEROS] = _pack(rows.zeros, form.bits)
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


_MIDDLES = {4: 0x88, 8: 0x80}
"""The middle of each integer of a byte, which signed ones lack."""


def dequantize(
    stored: Mapping[str, torch.Tensor], config: Mapping[str, object] = MappingProxyType({})
) -> dict[str, torch.Tensor]:
    """The tensors of a build in fp32, its weights in the place of their parts.

    config: of the checkpoint. Padding at the end of rows stays. Weights that were transposed are
    turned back.
    """
    found = dict(stored)
    for name in stored:
        if name.endswith(FP4):
            stem = name.removesuffix(FP4)
            found[stem] = _read_fp4(found, stem)
        for bits, end in (*PACKED.items(), *SIGNED.items()):
            if name.endswith(end):
                stem, packed = name.removesuffix(end), found.pop(name).view(torch.uint8)
                if end == SIGNED[bits]:
                    packed = packed ^ _MIDDLES[bits]
                weight = _read_weight(found, stem, bits, packed)
                turned = stem.endswith(TRANSPOSED)
                found[stem.removesuffix(TRANSPOSED)] = weight.mT if turned else weight
    return _without_fp8(found, config)


def _read_weight(
    stored: dict[str, torch.Tensor], stem: str, bits: int, packed: torch.Tensor
) -> torch.Tensor:
    """A weight [...,N,K], whose parts are taken out of `stored`."""
    scales = stored.pop(stem + SCALES).float()
    *leading, blocks = scales.shape
    integers = _unpack(packed.reshape(*leading, -1), bits).reshape(*leading, blocks, -1)
    zeros, minima, order = (stored.pop(stem + end, None) for end in (ZEROS, MINIMA, ORDER))
    if zeros is None:
        values = integers - (1 << bits - 1)
    else:
        values = integers - _unpack(zeros, bits)[..., :blocks, None]
    values *= scales[..., None]
    if minima is not None:
        values += minima.float()[..., None]
    flat = values.reshape(*leading, -1)
    return flat if order is None else flat[..., : len(order)][..., torch.argsort(order)]


def _read_fp4(stored: dict[str, torch.Tensor], stem: str) -> torch.Tensor:
    """A weight [N,K] of floats of 4 bits."""
    values = torch.from_numpy(E2M1)[_unpack(stored.pop(stem + FP4), 4).long()]
    scales = stored.pop(stem + SCALES).float() * stored.pop(stem + FACTOR)
    in_blocks = values.reshape(*scales.shape, -1) * scales[..., None]
    return in_blocks.flatten(-2)


def _unpack(packed: torch.Tensor, bits: int) -> torch.Tensor:
    """Rows of bytes as rows of integers, in fp32."""
    if bits == 4:
        packed = torch.stack((packed & 15, packed >> 4), -1).flatten(-2)
    return packed.float()


def _without_fp8(
    stored: Mapping[str, torch.Tensor], config: Mapping[str, object]
) -> dict[str, torch.Tensor]:
    found = read_quantization(config)
    width = found.block[1] if found else 0
    whole = {name: one.float() for name, one in stored.items() if not name.endswith(ROW_SCALES)}
    for name, scales in stored.items():
        if name.endswith(ROW_SCALES):
            weight = whole[name.removesuffix(ROW_SCALES)]
            if scales.ndim < weight.ndim:
                weight *= scales[:, None]
                continue
            columns, count = weight.shape[-1], scales.shape[-1]
            fits = width and -(-columns // width) == count
            of_scale = width if fits else _block_width(columns, count)
            weight *= scales.repeat_interleave(of_scale, -1)[..., :columns]
    return whole


def _block_width(columns: int, count: int) -> int:
    """The power of two of which a row has `count` blocks.

    ModelOpt's config is beside the model's, and modules may differ in their blocks.
    """
    return next(width for width in (1 << n for n in range(32)) if -(-columns // width) == count)
