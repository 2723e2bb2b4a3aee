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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from snapexport.errors import UserError
from snapexport.exporter.checkpoint import Checkpoint
from snapexport.exporter.derived.stack import InTurn, Stack
from snapexport.exporter.link import Traced
from snapexport.exporter.quantized import Fp8Tensor, read_quantization
from snapexport.exporter.tensor_file import Calculated, Tensor, hole
from snapexport.files.copying import is_hole
from snapexport.files.dtypes import DType

if TYPE_CHECKING:
    import torch

ROW_SCALES = ".row_scales"
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
        span, step = self.weight.scales, max(1, most // multiple) * multiple
        with span.file.open("rb") as file:
            if is_hole(file.fileno(), span.offset, span.offset + span.nbytes):
                sizes = (min(step, rows * count - start) for start in range(0, rows * count, step))
                yield from (hole(size, np.dtype(np.float32)) for size in sizes)
                return
        factors = self.weight.factors()
        self._require_range(factors)
        of_rows = factors.repeat(self.weight.block[0], axis=0)[:rows]
        repeated = np.ascontiguousarray(of_rows[:, :count]).reshape(-1)
        yield from (repeated[start : start + step] for start in range(0, repeated.size, step))

    def _require_range(self, factors: NDArray[np.float32]) -> None:
        if self.dtype_of_weights == "fp16" and factors.max() * _LARGEST > _FP16_LARGEST:
            raise UserError(
                f"the tensor {self.weight.name} may have values that fp16 cannot hold: its largest "
                f"scale is {factors.max():.4g}",
                "use --dtype bf16",
            )


@dataclass(frozen=True)
class Kept:
    """The parts of a weight that stays in fp8. width: elements of a row that share a scale; 0: all
    of a matrix's row.
    """

    values: Tensor
    scales: Tensor
    width: int


def kept(tensor: Tensor, dtype: DType, *, is_part: bool = False) -> Kept | None:
    """The parts of a weight, if all that it is made of is fp8, in blocks of one width."""
    match tensor:
        case Fp8Tensor():
            in_blocks = is_part or not tensor.by_row
            scales = RowScales(tensor, dtype, in_blocks)
            return Kept(tensor.stored, scales, tensor.block[1] * in_blocks)
        case InTurn(parts) | Stack(parts):
            if found := _all_kept(parts, dtype):
                joined = type(tensor)
                values = joined(tuple(one.values for one in found))
                return Kept(values, joined(tuple(one.scales for one in found)), found[0].width)
    return None


def _all_kept(tensors: Sequence[Tensor], dtype: DType) -> list[Kept]:
    found = [one for tensor in tensors if (one := kept(tensor, dtype, is_part=True))]
    return found if len(found) == len(tensors) else []


def require_fp8(checkpoint: Checkpoint) -> None:
    """Raise UserError for a checkpoint that holds no fp8 weights."""
    if not any(isinstance(one, Fp8Tensor) for one in checkpoint.tensors.values()):
        raise UserError(
            f"--weights fp8 keeps fp8 weights as they are, and {checkpoint.source} has none",
            "leave it out, or start from a checkpoint whose config.json says "
            '"quant_method": "fp8", such as DeepSeek-R1\'s',
        )


def keep(
    traced: Mapping[str, Traced], checkpoint: Checkpoint, dtype: DType
) -> tuple[Checkpoint, dict[str, Traced]]:
    """Let traces dequantize every weight whose bytes can stay.

    Returns the checkpoint with the parts in the place of such weights, and the traces.
    """
    names = {name for trace in traced.values() for name in trace.sources.values()}
    found = {n: one for n in sorted(names) if (one := kept(checkpoint.tensors[n], dtype))}
    tensors = dict(checkpoint.tensors)
    for name, parts in found.items():
        tensors |= {name: parts.values, name + ROW_SCALES: parts.scales}
    marked = {name: _dequantized(trace, found) for name, trace in traced.items()}
    return replace(checkpoint, tensors=tensors), marked


def _dequantized(trace: Traced, found: Mapping[str, Kept]) -> Traced:
    """The trace, with the dequantized parts in the place of its weights."""
    model, made = trace.model, dict[str, str]()
    for name, source in trace.sources.items():
        if source not in found:
            made[name] = source
            continue
        weight = model.graph.initializers.pop(name)
        parts = _initializers(weight, found[source])
        for part, of_checkpoint in zip(parts, (source, source + ROW_SCALES), strict=True):
            model.graph.initializers[str(part.name)] = part
            made[str(part.name)] = of_checkpoint
        _dequantize(model.graph, weight, parts, found[source].width)
    return Traced(model, made)


def _dequantize(
    graph: ir.Graph, weight: ir.Value, parts: tuple[ir.Value, ir.Value], width: int
) -> None:
    """Let the one reader of a weight, a product or the experts, read the dequantized parts."""
    (reader,) = weight.consumers()
    moved = [reader] if reader.op_type == "Transpose" else []
    if moved:
        (reader,) = reader.outputs[0].consumers()
        graph.remove(moved)
    states = reader.inputs[0]
    assert states is not None
    scales = _waiting(states, parts[1]) if width else [ir.node("Abs", [parts[1]])]
    nodes = _nodes(weight, (parts[0], scales[-1].outputs[0]), width)
    ir.convenience.replace_all_uses_with(weight, nodes[-1].outputs[0])
    graph.insert_before(reader, [*scales, *nodes, *moved])


def _waiting(states: ir.Value, scales: ir.Value) -> list[ir.Node]:
    """The nodes whose last output is the scales, once the product's other factor is there.

    max(scales, -|x|) is the scales, which are not negative, whatever x is. The builder of TensorRT
    for RTX 1.7 dequantizes at the start of a run what depends on weights alone, and holds all of it
    in 16 bits.
    """
    lowest = ir.node("ReduceMin", [states], {"keepdims": 0})
    in_fp32 = ir.node("Cast", lowest.outputs, {"to": ir.DataType.FLOAT.value})
    magnitude = ir.node("Abs", in_fp32.outputs)
    below = ir.node("Neg", magnitude.outputs)
    found = ir.node("Max", [scales, below.outputs[0]])
    found.outputs[0].type, found.outputs[0].shape = scales.type, scales.shape
    return [lowest, in_fp32, magnitude, below, found]


def _initializers(weight: ir.Value, parts: Kept) -> tuple[ir.Value, ir.Value]:
    """Values and scales, without data."""
    return (
        _initializer(f"{weight.name}.fp8", ir.DataType.FLOAT8E4M3FN, parts.values),
        _initializer(f"{weight.name}{ROW_SCALES}", ir.DataType.FLOAT, parts.scales),
    )


def _initializer(name: str, dtype: ir.DataType, tensor: Tensor) -> ir.Value:
    return ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(tensor.shape))


def _nodes(weight: ir.Value, parts: tuple[ir.Value, ir.Value], width: int) -> list[ir.Node]:
    """The nodes whose last output is the weight in its own dtype."""
    assert weight.shape is not None and weight.dtype is not None
    blocks = {"axis": len(weight.shape) - 1, "block_size": width} if width else {"axis": 0}
    nodes = [ir.node("DequantizeLinear", list(parts), blocks)]
    if weight.dtype != ir.DataType.FLOAT:
        nodes.append(ir.node("Cast", nodes[0].outputs, {"to": weight.dtype.value}))
    for node, dtype in zip(nodes, (ir.DataType.FLOAT, weight.dtype), strict=False):
        node.outputs[0].type, node.outputs[0].shape = ir.TensorType(dtype), weight.shape
    return nodes


def dequantized(
    stored: Mapping[str, "torch.Tensor"], config: Mapping[str, object]
) -> dict[str, "torch.Tensor"]:
    """The tensors of a build in fp32, its fp8 weights dequantized. config: of the checkpoint."""
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
            of_scale = width if fits else _width(columns, count)
            weight *= scales.repeat_interleave(of_scale, -1)[..., :columns]
    return whole


def _width(columns: int, count: int) -> int:
    """The power of two of which a row has so many blocks.

    ModelOpt's config lies beside the model's, and modules may differ in their blocks.
    """
    return next(width for width in (1 << n for n in range(32)) if -(-columns // width) == count)
