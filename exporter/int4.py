"""Quantizes linear layers and experts to 4 bits: blocks of 32 along K share a scale.

A tensor [N,K] becomes two parts: `.int4` uint8 [N,K/32,16], element 2i of a block in the low half
of byte i, and `.scales` [N,K/32]. w = (q - 8) * scale, 0 <= q < 16. The block's value of largest
magnitude gets q = 0, since -8 has a larger magnitude than 7 (as in llama.cpp's Q4_0). K is padded
with zeros to whole blocks.

Experts' stacks [E,N,K] become [E,N,K/2] and [E,N,K/32]. They stay whole if their K is no multiple
of 32, which ONNX Runtime's QMoE does not take. Routers stay whole: they choose. So do matrices of
fewer than 32 rows or columns, such as a shared expert's gate. A weight that lies as [K,N] (GPT-2)
is transposed while it is written: its parts have `.transposed` before their endings.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from snapexport.errors import UserError
from snapexport.exporter.checkpoint import Checkpoint
from snapexport.exporter.link import Traced
from snapexport.exporter.moved_weights import swapped
from snapexport.exporter.tensor_file import NUMPY_DTYPE, Progress, Tensor, WeightWriter, blocks
from snapexport.graphs.markers import BLOCK_EXPERTS, BLOCK_MATMUL, EXPERTS, TRACE_DOMAIN

BLOCK = 32
_PACKED, _SCALES, _TRANSPOSED = ".int4", ".scales", ".transposed"


def parts(name: str) -> tuple[str, str]:
    """The names of a tensor's parts."""
    return name + _PACKED, name + _SCALES


def whole(part: str) -> str:
    """The tensor of a part; other names are returned unchanged."""
    return part.removesuffix(_PACKED).removesuffix(_SCALES)


def marked(trace: Traced) -> Traced:
    """Replace the markers of experts, and every linear layer's matrix product, by a marker.

    The new sources have the new parts, and lack the weights that no node reads any more.
    """
    model, sources = trace.model, trace.sources
    routers = _routers(model)
    for experts in [n for n in model.graph if (n.domain, n.op_type) == (TRACE_DOMAIN, EXPERTS)]:
        sources = sources | _mark_experts(model, experts, sources)
    for name in list(sources):
        weight = model.graph.initializers[name]
        if weight not in routers and _is_large_matrix(weight):
            made = _mark_products(model, weight)
            sources = sources | {str(p.name): _part_of(sources, weight, p) for p in made}
    return Traced(model, {name: one for name, one in sources.items() if _is_read(model, name)})


def with_transposed(checkpoint: Checkpoint, traces: Iterable[Traced]) -> Checkpoint:
    """The checkpoint with the transposed weights that marked traces read."""
    read = {whole(source) for trace in traces for source in trace.sources.values()}
    turned = {
        name: swapped(checkpoint.tensors[name.removesuffix(_TRANSPOSED)])
        for name in sorted(read)
        if name.endswith(_TRANSPOSED)
    }
    return replace(checkpoint, tensors={**checkpoint.tensors, **turned})


def _is_large_matrix(weight: ir.Value) -> bool:
    shape = weight.shape
    return shape is not None and len(shape) == 2 and min(shape.numpy()) >= BLOCK


def _mark_products(model: ir.Model, weight: ir.Value) -> tuple[ir.Value, ...]:
    """Replace the products with a weight by markers. Returns the new parts; none without one."""
    made: tuple[ir.Value, ...] = ()
    for node in list(weight.consumers()):
        if node.op_type == "Transpose":
            made = made or _parts(model, weight)
            (transposed,) = node.outputs
            for product in list(transposed.consumers()):
                assert product.op_type == "MatMul" and product.inputs[1] is transposed, product
                _replace(model.graph, product, made, _shape(weight))
            model.graph.remove(node, safe=True)
        elif node.op_type == "Gemm" and node.inputs[1] is weight:
            lies = bool(node.attributes["transB"].as_int())
            made = made or _parts(model, weight, transposed=not lies)
            rows, columns = _shape(weight) if lies else _shape(weight)[::-1]
            _replace(model.graph, node, made, (rows, columns))
    return made


def _routers(model: ir.Model) -> set[ir.Value]:
    """The matrices whose products choose experts: the nearest ones before each choice."""
    found: set[ir.Value] = set()
    seen: set[ir.Value] = set()
    for experts in [n for n in model.graph if (n.domain, n.op_type) == (TRACE_DOMAIN, EXPERTS)]:
        waiting = [experts.inputs[1]]
        while waiting:
            value = waiting.pop()
            if value is None or value in seen or (node := value.producer()) is None:
                continue
            seen.add(value)
            if node.op_type in ("MatMul", "Gemm"):
                found |= {weight for weight in node.inputs if weight and _is_weight(weight)}
                found |= {_transposed(value) for value in node.inputs if value}
            else:
                waiting += node.inputs
    return found


def _is_weight(value: ir.Value) -> bool:
    return value.producer() is None


def _transposed(value: ir.Value) -> ir.Value:
    """The value that a Transpose reads, or the value itself."""
    node = value.producer()
    first = node.inputs[0] if node and node.op_type == "Transpose" else None
    return value if first is None else first


def _mark_experts(model: ir.Model, old: ir.Node, sources: dict[str, str]) -> dict[str, str]:
    """Experts -> BlockExperts, with the same output. Returns the sources of the new parts."""
    *routing, gate_up, down = old.inputs[:5]
    assert gate_up is not None and down is not None
    if any(_shape(weight)[-1] % BLOCK for weight in (gate_up, down)):
        return {}
    made = {weight: _parts(model, weight) for weight in (gate_up, down)}
    marker = ir.node(
        BLOCK_EXPERTS,
        [*routing, *made[gate_up], *made[down], *old.inputs[5:]],
        {**old.attributes, "block_size": BLOCK},
        domain=TRACE_DOMAIN,
        num_outputs=1,
    )
    ir.convenience.replace_nodes_and_values(
        model.graph, old, [old], [marker], old.outputs, marker.outputs
    )
    return {
        str(part.name): _part_of(sources, weight, part)
        for weight, parts_of in made.items()
        for part in parts_of
    }


def _shape(weight: ir.Value) -> tuple[int, ...]:
    assert weight.shape is not None
    return weight.shape.numpy()


def _part_shapes(whole: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of the parts of a tensor [N,K] or [E,N,K]."""
    *leading, columns = whole
    count = -(-columns // BLOCK)
    packed = (count, BLOCK // 2) if len(leading) == 1 else (count * BLOCK // 2,)
    return (*leading, *packed), (*leading, count)


def _parts(
    model: ir.Model, weight: ir.Value, transposed: bool = False
) -> tuple[ir.Value, ir.Value]:
    """Two new initializers without data. transposed: of a weight [K,N]."""
    assert weight.dtype is not None
    shape, turned = (_shape(weight)[::-1], _TRANSPOSED) if transposed else (_shape(weight), "")
    packed, scales = _part_shapes(shape)
    made = (
        _initializer(weight, turned + _PACKED, ir.DataType.UINT8, packed),
        _initializer(weight, turned + _SCALES, weight.dtype, scales),
    )
    for part in made:
        model.graph.initializers[str(part.name)] = part
    return made


def _initializer(
    weight: ir.Value, suffix: str, dtype: ir.DataType, shape: tuple[int, ...]
) -> ir.Value:
    return ir.Value(name=f"{weight.name}{suffix}", type=ir.TensorType(dtype), shape=ir.Shape(shape))


def _replace(
    graph: ir.Graph, product: ir.Node, made: tuple[ir.Value, ...], shape: tuple[int, ...]
) -> None:
    """x @ W^T [+ bias] -> BlockMatMul(x, made) [+ bias], with the same output. shape: of W."""
    rows, columns = shape
    marker = ir.node(
        BLOCK_MATMUL,
        [product.inputs[0], *made],
        {"N": rows, "K": columns, "block_size": BLOCK},
        domain=TRACE_DOMAIN,
        num_outputs=1,
    )
    bias = product.inputs[2] if len(product.inputs) > 2 else None
    nodes = [marker] if bias is None else [marker, ir.node("Add", [marker.outputs[0], bias])]
    ir.convenience.replace_nodes_and_values(
        graph, product, [product], nodes, product.outputs, nodes[-1].outputs
    )


def _part_of(sources: dict[str, str], weight: ir.Value, part: ir.Value) -> str:
    return sources[str(weight.name)] + str(part.name).removeprefix(str(weight.name))


def _is_read(model: ir.Model, name: str) -> bool:
    """Whether a node reads an initializer; if not, remove it."""
    value = model.graph.initializers[name]
    if value.consumers():
        return True
    del model.graph.initializers[name]
    return False


def write(
    name: str, tensor: Tensor, dtype: str, directory: Path, progress: Progress
) -> Iterator[WeightWriter]:
    """Quantize a tensor [N,K] or [E,N,K] into two files, with scales of `dtype`."""
    packed_shape, scales_shape = _part_shapes(tensor.shape)
    packed_name, scales_name = parts(name)
    scales = []
    with WeightWriter(directory, packed_name, "U8", packed_shape, progress) as packed_file:
        for packed, block_scales in _quantized(name, tensor):
            packed_file.write(packed.tobytes())
            scales.append(block_scales.astype(NUMPY_DTYPE[dtype]))
    yield packed_file
    with WeightWriter(directory, scales_name, dtype, scales_shape, progress) as scales_file:
        scales_file.write(np.concatenate(scales).tobytes())
    yield scales_file


def _quantized(
    name: str, tensor: Tensor
) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.float32]]]:
    """Quantize a tensor, some rows at a time."""
    columns = tensor.shape[-1]
    for block in blocks(tensor, columns):
        rows = block.astype(np.float32).reshape(-1, columns)
        if not np.isfinite(rows).all():
            raise UserError(
                f"the tensor {name} has NaN or infinite values", "leave out --weights int4"
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
