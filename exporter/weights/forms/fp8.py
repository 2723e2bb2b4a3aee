"""Keeps fp8 weights of a checkpoint as they are: graphs dequantize them where they are read.

The bytes q of a matrix [N,K], or of a stack of experts [E,N,K], stay under the tensor's name. Their
scales, one for each block of rows and columns, become `.row_scales` [...,N,ceil(K/b)] in fp32, one
for each block of a row: DequantizeLinear has blocks along one axis. So

    w = Cast(DequantizeLinear(q, max(row_scales, -|x|)))

has its product in fp32 and is rounded once, as by transformers. The maximum, with any activation x,
is row_scales: it only makes a compiler dequantize w when its layer is due. Where a row has one
scale, row_scales are [N], and a compiler multiplies with the bytes; it reads |row_scales|, since
TensorRT refuses a constant of zero as a scale. Matrices that a build takes apart (latent
attention's kv_b_proj) are dequantized as they are written.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from snapexport.errors import UserError
from snapexport.exporter.read.checkpoint import Checkpoint
from snapexport.exporter.weights.arranged import InTurn, Stack
from snapexport.exporter.weights.readers.fp8 import Fp8Tensor
from snapexport.exporter.weights.tensor_file import Calculated, Tensor, hole, in_blocks
from snapexport.files.copying import is_hole
from snapexport.files.dtypes import DType

_LARGEST = 448.0
_FP16_LARGEST = float(np.finfo(np.float16).max)


@dataclass(frozen=True)
class RowScales(Calculated):
    """The scales of a matrix [N,K], repeated for each row: fp32 [N,ceil(K/b)], or [N].

    dtype_of_weights: what the graph computes in. fp16 holds no weights above 65,504. in_blocks:
    whether each block of a row has its own.
    """

    weight: Fp8Tensor
    dtype_of_weights: DType
    in_blocks: bool = True
    dtype: str = "F32"

    @property
    def shape(self) -> tuple[int, ...]:
        whole = self.weight.shape[0], self.weight.grid[1]
        return whole if self.in_blocks else whole[:1]

    def blocks(self, multiple: int, most: int) -> Iterator[NDArray[np.generic]]:
        """The elements in order, flat, in blocks whose size is a multiple of `multiple`."""
        rows, count = self.shape[0], self.weight.grid[1] if self.in_blocks else 1
        span = self.weight.scales
        with span.file.open("rb") as file:
            if is_hole(file.fileno(), span.offset, span.offset + span.nbytes):
                return in_blocks(hole(rows * count, np.dtype(np.float32)), multiple, most)
        factors = self.weight.factors()
        self._require_range(factors)
        of_rows = factors.repeat(self.weight.block[0], axis=0)[:rows]
        return in_blocks(np.ascontiguousarray(of_rows[:, :count]).reshape(-1), multiple, most)

    def _require_range(self, factors: NDArray[np.float32]) -> None:
        if self.dtype_of_weights == "fp16" and factors.max() * _LARGEST > _FP16_LARGEST:
            raise UserError(
                f"the tensor {self.weight.name} may have values that fp16 cannot hold: its largest "
                f"scale is {factors.max():.4g}",
                "use --dtype bf16",
            )


@dataclass(frozen=True)
class Fp8Weight:
    """The parts of a weight that stays in fp8.

    width: elements of a row that share a scale; 0: all of a matrix's row.
    """

    values: Tensor
    scales: Tensor
    width: int


def as_fp8(tensor: Tensor, dtype: DType, *, is_part: bool = False) -> Fp8Weight | None:
    """The parts of a weight, if all that it is made of is fp8, in blocks of one width."""
    match tensor:
        case Fp8Tensor():
            in_blocks = is_part or not tensor.by_row
            scales = RowScales(tensor, dtype, in_blocks)
            return Fp8Weight(tensor.stored, scales, tensor.block[1] * in_blocks)
        case InTurn(parts) | Stack(parts):
            if found := _all_fp8(parts, dtype):
                joined = type(tensor)
                values = joined(tuple(one.values for one in found))
                return Fp8Weight(values, joined(tuple(one.scales for one in found)), found[0].width)
    return None


def _all_fp8(tensors: Sequence[Tensor], dtype: DType) -> list[Fp8Weight]:
    found = [one for tensor in tensors if (one := as_fp8(tensor, dtype, is_part=True))]
    return found if len(found) == len(tensors) else []


def require_fp8(checkpoint: Checkpoint) -> None:
    """Raise UserError for a checkpoint that holds no fp8 weights."""
    if not any(isinstance(one, Fp8Tensor) for one in checkpoint.tensors.values()):
        raise UserError(
            f"--weights fp8 keeps fp8 weights as they are, and {checkpoint.source} has none",
            "leave it out, or start from a checkpoint whose config.json says "
            '"quant_method": "fp8", such as DeepSeek-R1\'s',
        )
