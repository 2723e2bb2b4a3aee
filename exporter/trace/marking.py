"""Lets traces read weights in few bits: markers in the place of the operators that read floats.

Routers stay floats: they choose. So do matrices of fewer than 32 rows or columns, such as a shared
expert's gate, and experts whose K is not a multiple of the block, which QMoE does not take. A
weight that is [K,N] (GPT-2) is transposed while it is written: `.transposed` comes before the
endings of its parts.

fp8 has no marker: DequantizeLinear is placed before the reader, whatever it is (`forms/fp8.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from snapexport.exporter.trace.link import Traced
from snapexport.exporter.weights.arranged import swap_axes
from snapexport.exporter.weights.forms.choice import Choice, Exact, KeptFp8
from snapexport.exporter.weights.forms.fp8 import Fp8Weight
from snapexport.exporter.weights.forms.parts import (
    FACTOR,
    FP4,
    MINIMA,
    ORDER,
    ROW_SCALES,
    SCALES,
    SIGNED,
    TRANSPOSED,
    ZEROS,
    Weight,
    packed_end,
    shapes,
)
from snapexport.exporter.weights.tensor_file import Tensor
from snapexport.graphs.markers import (
    BLOCK_EXPERTS,
    BLOCK_GATHER,
    BLOCK_MATMUL,
    EXPERTS,
    TRACE_DOMAIN,
)

SMALLEST_SIDE = 32
_OF_PRODUCTS, _OF_LOOKUPS, _OF_EXPERTS = (
    (SCALES, ZEROS, MINIMA, ORDER),
    (SCALES, ZEROS, MINIMA),
    (SCALES, ZEROS),
)
"""The parts that a marker takes after the integers, in their order."""


@dataclass
class Marking:
    """Marks the traces of one checkpoint. weights: what they read as integers, by name.

    embedding: the name of the only matrix whose rows are looked up as integers. experts: whether
    stacks of experts become integers too. exact: products that don't round what they read.
    """

    tensors: Mapping[str, Tensor]
    choice: Choice
    embedding: str
    experts: bool = True
    exact: Exact | None = None
    weights: dict[str, Weight] = field(default_factory=dict)
    _chosen: dict[str, Weight | Fp8Weight | None] = field(default_factory=dict)

    def mark(self, trace: Traced) -> Traced:
        """The trace with markers. Its sources have the parts, and lack what nothing reads now."""
        one = _MarkedTrace(self, trace.model, dict(trace.sources))
        if isinstance(self.choice, KeptFp8):
            for name in trace.sources:
                one.dequantize(name)
            return one.finish()
        routers = _routers(trace.model)
        for experts in _experts(trace.model) if self.experts else ():
            one.mark_experts(experts)
        for name in trace.sources:
            weight = trace.model.graph.initializers[name]
            if weight not in routers and _is_large_matrix(weight):
                one.mark_readers(weight)
        return one.finish()

    @property
    def stored(self) -> dict[str, Tensor]:
        """The checkpoint's tensors. Weights that stay in fp8 are replaced by their parts."""
        found = dict(self.tensors)
        for name, weight in self._chosen.items():
            if isinstance(weight, Fp8Weight):
                found |= {name: weight.values, name + ROW_SCALES: weight.scales}
        return found

    def weight(self, source: str, *, turned: bool = False) -> Weight | Fp8Weight | None:
        """A tensor of the checkpoint in few bits, if it becomes such. turned: it is [K,N]."""
        name = source + TRANSPOSED * turned
        if name not in self._chosen:
            tensor = self.tensors[source]
            self._chosen[name] = self.choice.of(name, swap_axes(tensor) if turned else tensor)
        return self._chosen[name]


@dataclass
class _MarkedTrace:
    """One trace while it is marked. sources: {initializer: tensor, or part of one}."""

    marking: Marking
    model: ir.Model
    sources: dict[str, str]

    def dequantize(self, name: str) -> None:
        """Let the reader of a weight that stays in fp8 dequantize it. Its parts take its place."""
        source, initializers = self.sources.pop(name), self.model.graph.initializers
        found = self.marking.weight(source)
        if not isinstance(found, Fp8Weight):
            self.sources[name] = source
            return
        weight = initializers.pop(name)
        parts = (
            _initializer(f"{name}.fp8", ir.DataType.FLOAT8E4M3FN, found.values.shape),
            _initializer(f"{name}{ROW_SCALES}", ir.DataType.FLOAT, found.scales.shape),
        )
        for part, end in zip(parts, ("", ROW_SCALES), strict=True):
            initializers[str(part.name)] = part
            self.sources[str(part.name)] = source + end
        _dequantize(self.model.graph, weight, parts, found.width)

    def mark_readers(self, weight: ir.Value) -> None:
        """Mark all that read a matrix."""
        for node in list(weight.consumers()):
            if node.op_type == "Transpose":
                self._mark_products(weight, node)
            elif node.op_type == "Gemm" and node.inputs[1] is weight:
                self._mark_gemm(weight, node)
            elif node.op_type == "Gather" and node.inputs[0] is weight:
                self._mark_lookup(weight, node)

    def mark_experts(self, old: ir.Node) -> None:
        """Experts -> BlockExperts, with the same output."""
        *routing, gate_up, down = old.inputs[:5]
        assert gate_up is not None and down is not None
        both = [(one, self._integers(one)) for one in (gate_up, down)]
        found = [(one, weight) for one, weight in both if weight and _suits_experts(weight)]
        if len(found) < len(both) or not _of_one_block([weight for _, weight in found]):
            return
        parts = [part for one, weight in found for part in self._parts(one, weight, _OF_EXPERTS)]
        forms = [weight.form for _, weight in found]
        attributes = dict(old.attributes) | {
            "gate_up_bits": forms[0].bits,
            "down_bits": forms[1].bits,
            "block_size": forms[0].block,
        }
        self._replace(old, [*routing, *parts, *old.inputs[5:]], BLOCK_EXPERTS, attributes)

    def finish(self) -> Traced:
        """The marked trace, without initializers that nothing reads."""
        read = {name: one for name, one in self.sources.items() if _is_read(self.model, name)}
        return Traced(self.model, read)

    def _mark_products(self, weight: ir.Value, transpose: ir.Node) -> None:
        if (found := self._integers(weight)) is None:
            return
        (transposed,) = transpose.outputs
        for product in list(transposed.consumers()):
            assert product.op_type == "MatMul" and product.inputs[1] is transposed, product
            self._mark_product(product, weight, found)
        self.model.graph.remove(transpose, safe=True)

    def _mark_gemm(self, weight: ir.Value, gemm: ir.Node) -> None:
        turned = not gemm.attributes["transB"].as_int()
        if found := self._integers(weight, turned=turned):
            self._mark_product(gemm, weight, found, turned=turned)

    def _mark_product(
        self, product: ir.Node, weight: ir.Value, found: Weight, *, turned: bool = False
    ) -> None:
        """x @ W^T [+ bias] -> BlockMatMul(x, parts) [+ bias], with the same output."""
        bias = product.inputs[2] if len(product.inputs) > 2 else None
        ends = (*_OF_PRODUCTS, FACTOR) if found.form.floats else _OF_PRODUCTS
        parts = self._parts(weight, found, ends, turned=turned)
        attributes = _attributes(found) | {"N": found.shape[0], "K": found.shape[1]}
        if (exact := self.marking.exact) and exact.of(self.sources[str(weight.name)], found):
            attributes["exact"] = 1
        self._replace(product, [product.inputs[0], *parts], BLOCK_MATMUL, attributes, bias)

    def _mark_lookup(self, weight: ir.Value, gather: ir.Node) -> None:
        if self.sources[str(weight.name)] != self.marking.embedding:
            return  # of positions (GPT-2)
        found = self._integers(weight)
        if found is None or found.form.floats:
            return
        if found.shape[1] % found.form.block == 0 and not found.form.ordered:
            parts = self._parts(weight, found, _OF_LOOKUPS)
            self._replace(gather, [gather.inputs[1], *parts], BLOCK_GATHER, _attributes(found))

    def _integers(self, weight: ir.Value, *, turned: bool = False) -> Weight | None:
        found = self.marking.weight(self.sources[str(weight.name)], turned=turned)
        assert not isinstance(found, Fp8Weight)
        return found

    def _parts(
        self, weight: ir.Value, found: Weight, ends: Sequence[str], *, turned: bool = False
    ) -> list[ir.Value | None]:
        """The initializers of a weight's parts, without data; None for parts that it lacks."""
        of_parts = shapes(found.form, found.shape)
        packed = packed_end(found.form)
        stem, dtype = TRANSPOSED * turned, weight.dtype
        assert dtype is not None
        self.marking.weights[self.sources[str(weight.name)] + stem] = found
        types = {packed: ir.DataType.UINT8, ZEROS: ir.DataType.UINT8, ORDER: ir.DataType.INT64}
        if found.form.signed:
            of_parts[packed] = found.shape
            types |= {SIGNED[4]: ir.DataType.INT4, SIGNED[8]: ir.DataType.INT8}
        if found.form.floats:
            types |= {FP4: ir.DataType.FLOAT4E2M1, SCALES: ir.DataType.FLOAT8E4M3FN}
            types |= {FACTOR: ir.DataType.FLOAT}
        return [
            self._part(weight, stem + end, types.get(end, dtype), of_parts[end])
            if end in of_parts
            else None
            for end in (packed, *ends)
        ]

    def _part(
        self, weight: ir.Value, end: str, dtype: ir.DataType, shape: tuple[int, ...]
    ) -> ir.Value:
        name = f"{weight.name}{end}"
        made = self.model.graph.initializers.get(name)
        if made is None:
            made = _initializer(name, dtype, shape)
            self.model.graph.initializers[name] = made
            self.sources[name] = self.sources[str(weight.name)] + end
        return made

    def _replace(
        self,
        old: ir.Node,
        inputs: Sequence[ir.Value | None],
        marker: str,
        attributes: Mapping[str, Any],
        bias: ir.Value | None = None,
    ) -> None:
        """Put a marker in the place of a node, with the same output."""
        made = ir.node(marker, inputs, dict(attributes), domain=TRACE_DOMAIN, num_outputs=1)
        nodes = [made] if bias is None else [made, ir.node("Add", [made.outputs[0], bias])]
        ir.convenience.replace_nodes_and_values(
            self.model.graph, old, [old], nodes, old.outputs, nodes[-1].outputs
        )


def _initializer(name: str, dtype: ir.DataType, shape: tuple[int, ...]) -> ir.Value:
    """An initializer without data."""
    return ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape))


def _attributes(weight: Weight) -> dict[str, int]:
    return {"bits": weight.form.bits, "block_size": weight.form.block}


def _of_one_block(weights: list[Weight]) -> bool:
    """Whether QMoE takes both. Signed ones are dequantized each for itself."""
    forms = [weight.form for weight in weights]
    return forms[0].signed or len({form.block for form in forms}) == 1


def _suits_experts(weight: Weight) -> bool:
    """Whether QMoE takes it."""
    form = weight.form
    return not (form.minima or form.ordered or weight.shape[-1] % form.block)


def _is_large_matrix(weight: ir.Value) -> bool:
    shape = weight.shape
    return shape is not None and len(shape) == 2 and min(shape.numpy()) >= SMALLEST_SIDE


def _experts(model: ir.Model) -> list[ir.Node]:
    return [n for n in model.graph if (n.domain, n.op_type) == (TRACE_DOMAIN, EXPERTS)]


def _routers(model: ir.Model) -> set[ir.Value]:
    """The matrices whose products choose experts: the nearest ones before each choice."""
    found: set[ir.Value] = set()
    seen: set[ir.Value] = set()
    for experts in _experts(model):
        waiting = [experts.inputs[1]]
        while waiting:
            value = waiting.pop()
            if value is None or value in seen or (node := value.producer()) is None:
                continue
            seen.add(value)
            if node.op_type in ("MatMul", "Gemm"):
                found |= {one for one in node.inputs if one and one.producer() is None}
                found |= {_before_transpose(value) for value in node.inputs if value}
            else:
                waiting += node.inputs
    return found


def _before_transpose(value: ir.Value) -> ir.Value:
    """The value that a Transpose reads, or the value itself."""
    node = value.producer()
    first = node.inputs[0] if node and node.op_type == "Transpose" else None
    return value if first is None else first


def _is_read(model: ir.Model, name: str) -> bool:
    """Whether a node reads an initializer; if not, remove it."""
    value = model.graph.initializers[name]
    if value.consumers():
        return True
    del model.graph.initializers[name]
    return False


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
    for RTX 1.7 dequantizes at the start of a run what depends only on weights, and holds all of it
    in 16 bits.
    """
    lowest = ir.node("ReduceMin", [states], {"keepdims": 0})
    in_fp32 = ir.node("Cast", lowest.outputs, {"to": ir.DataType.FLOAT.value})
    magnitude = ir.node("Abs", in_fp32.outputs)
    below = ir.node("Neg", magnitude.outputs)
    found = ir.node("Max", [scales, below.outputs[0]])
    found.outputs[0].type, found.outputs[0].shape = scales.type, scales.shape
    return [lowest, in_fp32, magnitude, below, found]


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
