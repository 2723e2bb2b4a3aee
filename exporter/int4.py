"""Linear layers with weights of 4 bits: blocks of 32 along K share a scale.

A tensor [N,K] becomes two parts: `.int4` uint8 [N,K/32,16], element 2i of a block in the low half
of byte i, and `.scales` [N,K/32]. Element w is (q - 8) * scale, 0 <= q < 16. The scale maps the
block's largest value, with its sign, to -8, the end that has one step more (as llama.cpp's Q4_0
does). K is padded with zeros to whole blocks.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from snapexport.contract.errors import UserError
from snapexport.exporter.checkpoint import TensorSpan, read_header
from snapexport.exporter.tensor_file import NUMPY_DTYPE, blocks, header
from snapexport.graphs.markers import BLOCK_MATMUL, TRACE_DOMAIN

BLOCK = 32
_PACKED, _SCALES = ".int4", ".scales"
_IR_DTYPES = {"F32": ir.DataType.FLOAT, "F16": ir.DataType.FLOAT16}


def is_part(name: str) -> bool:
    """Whether it names a part of a quantized tensor."""
    return name.endswith((_PACKED, _SCALES))


def whole(part: str) -> str:
    """The tensor that a part is made from."""
    return part.removesuffix(_PACKED).removesuffix(_SCALES)


def mark(model: ir.Model, sources: dict[str, str]) -> dict[str, str]:
    """Put a marker in place of every linear layer's matrix product.

    sources: initializer -> checkpoint tensor. Returned with the parts in place of the weights that
    nothing reads any more.
    """
    for transpose in [n for n in model.graph if n.op_type == "Transpose"]:
        weight, transposed = transpose.inputs[0], transpose.outputs[0]
        assert weight is not None
        if weight.name in sources:
            parts = _parts(model, weight)
            for product in list(transposed.consumers()):
                _replace(model.graph, product, transposed, parts, weight)
            model.graph.remove(transpose, safe=True)
            sources = sources | {str(p.name): _part_of(sources, weight, p) for p in parts}
    return {name: source for name, source in sources.items() if _is_read(model, name)}


def _parts(model: ir.Model, weight: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Two new initializers without data."""
    assert weight.shape is not None and weight.dtype is not None
    rows, columns = weight.shape.numpy()
    count = -(-columns // BLOCK)
    parts = (
        _initializer(weight, _PACKED, ir.DataType.UINT8, (rows, count, BLOCK // 2)),
        _initializer(weight, _SCALES, weight.dtype, (rows, count)),
    )
    for part in parts:
        model.graph.initializers[str(part.name)] = part
    return parts


def _initializer(
    weight: ir.Value, suffix: str, dtype: ir.DataType, shape: tuple[int, ...]
) -> ir.Value:
    return ir.Value(name=f"{weight.name}{suffix}", type=ir.TensorType(dtype), shape=ir.Shape(shape))


def _replace(
    graph: ir.Graph,
    product: ir.Node,
    transposed: ir.Value,
    parts: tuple[ir.Value, ir.Value],
    weight: ir.Value,
) -> None:
    """x @ Transpose(W) -> BlockMatMul(x, parts), under the product's own output."""
    assert product.op_type == "MatMul" and product.inputs[1] is transposed, product
    assert weight.shape is not None
    rows, columns = weight.shape.numpy()
    marker = ir.node(
        BLOCK_MATMUL,
        [product.inputs[0], *parts],
        {"N": rows, "K": columns, "block_size": BLOCK},
        domain=TRACE_DOMAIN,
        num_outputs=1,
    )
    ir.convenience.replace_nodes_and_values(
        graph, product, [product], [marker], product.outputs, marker.outputs
    )


def _part_of(sources: dict[str, str], weight: ir.Value, part: ir.Value) -> str:
    return sources[str(weight.name)] + str(part.name).removeprefix(str(weight.name))


def _is_read(model: ir.Model, name: str) -> bool:
    """Whether the graph still needs an initializer; if not, it goes."""
    value = model.graph.initializers[name]
    if value.consumers():
        return True
    del model.graph.initializers[name]
    return False


def write(
    spans: dict[str, TensorSpan], dtype: str, target: Path, progress: Callable[[int], None]
) -> dict[str, TensorSpan]:
    """Quantize tensors [N,K] into one file, with scales of `dtype`; where each part lies."""
    parts: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, span in spans.items():
        rows, columns = span.shape
        count = -(-columns // BLOCK)
        parts[name + _PACKED] = ("U8", (rows, count, BLOCK // 2))
        parts[name + _SCALES] = (dtype, (rows, count))
    with target.open("xb") as out:
        out.write(header(parts))
        for name, span in spans.items():
            scales = []
            for packed, block_scales in _quantized(name, span):
                out.write(packed.tobytes())
                progress(packed.nbytes)
                scales.append(block_scales.astype(NUMPY_DTYPE[dtype]))
            out.write(np.concatenate(scales).tobytes())
    return read_header(target)


def _quantized(
    name: str, span: TensorSpan
) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.float32]]]:
    """Some rows at a time."""
    columns = span.shape[1]
    for block in blocks(span, columns):
        rows = block.astype(np.float32).reshape(-1, columns)
        if not np.isfinite(rows).all():
            raise UserError(
                f"the tensor {name} has values that are no numbers", "leave out --weights int4"
            )
        yield quantize(rows)


def quantize(rows: NDArray[np.float32]) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """float32 [n,K] -> packed [n,K/32,16] and scales [n,K/32]."""
    padded = np.pad(rows, ((0, 0), (0, -rows.shape[1] % BLOCK)))
    grouped = padded.reshape(len(rows), -1, BLOCK)
    low, high = grouped.min(-1), grouped.max(-1)
    scales = np.where(-low > high, low, high) / -8
    steps = np.divide(grouped, scales[..., None], where=scales[..., None] != 0, out=grouped * 0)
    q = np.clip(np.rint(steps) + 8, 0, 15).astype(np.uint8)
    return q[..., 0::2] | q[..., 1::2] << 4, scales
