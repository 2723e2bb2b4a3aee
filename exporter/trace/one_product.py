"""Makes one product of those that read the same states: of a layer's q, k and v.

       q, k, v = x Wq^T + bq, x Wk^T + bk, x Wv^T + bv
    -> q, k, v = Split(x W^T + b), with the rows of Wq, Wk and Wv in W

Two kernels take the place of three or more. W is no further copy: its rows follow each other in
one file (`weights/joined.py`), each matrix under its own name. Two products, such as an MLP's gate
and up, would become two kernels again, and stay.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from snapexport.exporter.trace.link import Traced
from snapexport.exporter.weights.joined import Joined
from snapexport.files.safetensors import joined_name
from snapexport.graphs.markers import BLOCK_MATMUL, TRACE_DOMAIN

FEWEST = 3
"""Products that are worth a Split."""
Group = tuple["_Product", ...]
_OF_EACH = ("N", "exact")
"""Attributes in which products may differ. All are exact if one is."""


@dataclass(frozen=True)
class _Product:
    """A linear layer: its nodes in order, the parts of its weight, and its bias.

    rows: N. form: what is alike in those that can become one.
    """

    nodes: tuple[ir.Node, ...]
    states: ir.Value
    parts: tuple[ir.Value | None, ...]
    bias: ir.Value | None
    rows: int
    form: tuple[Any, ...]

    @property
    def output(self) -> ir.Value:
        return self.nodes[-1].outputs[0]

    @property
    def name(self) -> str:
        return str(self.parts[0] and self.parts[0].name)


def join_products(traced: Mapping[str, Traced]) -> tuple[dict[str, Traced], Joined]:
    """Change the traces in place. Returns them with their sources, and the joined weights."""
    found = {name: list(_groups(trace)) for name, trace in traced.items()}
    alike = _alike(traced, found)
    joined: dict[str, tuple[str, ...]] = {}
    changed = {}
    for name, trace in traced.items():
        sources = dict(trace.sources)
        for group in found[name]:
            if _sources(trace, group) in alike:
                _join(trace.model.graph, group, sources, joined)
        changed[name] = Traced(trace.model, sources)
    return changed, joined


def _sources(trace: Traced, group: Group) -> tuple[str, ...]:
    return tuple(trace.sources[product.name] for product in group)


def _alike(traced: Mapping[str, Traced], found: Mapping[str, list[Group]]) -> set[tuple[str, ...]]:
    """The groups, by their weights' sources, that each trace has that reads any of these."""
    of_trace = {name: {_sources(traced[name], one) for one in found[name]} for name in traced}
    read = {name: set(trace.sources.values()) for name, trace in traced.items()}
    every = set[tuple[str, ...]]().union(*of_trace.values())
    return {
        group
        for group in every
        if all(group in of_trace[name] or read[name].isdisjoint(group) for name in traced)
    }


def _groups(trace: Traced) -> Iterator[Group]:
    """Products of one form that read the same states."""
    by_states: dict[tuple[Any, ...], list[_Product]] = {}
    for node in trace.model.graph:
        if product := _product(trace, node):
            by_states.setdefault((id(product.states), *product.form), []).append(product)
    yield from (tuple(group) for group in by_states.values() if len(group) >= FEWEST)


def _product(trace: Traced, node: ir.Node) -> _Product | None:
    """The linear layer of a node, if nothing else reads its parts."""
    states, *parts = node.inputs or (None,)
    before: tuple[ir.Node, ...] = ()
    if node.op_type == "MatMul" and parts[0] is not None:
        transpose = parts[0].producer()
        if transpose is None or transpose.op_type != "Transpose" or not _once(parts[0]):
            return None
        before, parts = (transpose,), [transpose.inputs[0]]
    elif (node.domain, node.op_type) != (TRACE_DOMAIN, BLOCK_MATMUL):
        return None
    if states is None or not all(part is None or _is_weight(trace, part) for part in parts):
        return None
    (weight, *others), bias = parts, _bias(trace, node)
    if weight is None or weight.shape is None or any(_is_vector(part) for part in others):
        return None  # an order of columns is each weight's own
    attributes = [(k, v.value) for k, v in sorted(node.attributes.items()) if k not in _OF_EACH]
    shapes = [part and (part.dtype, *(part.shape or ())[1:]) for part in parts]
    form = (node.op_type, bias is None, *attributes, *shapes)
    last = (node,) if bias is None else (node, _reader(node.outputs[0]))
    return _Product((*before, *last), states, tuple(parts), bias, weight.shape.numpy()[0], form)


def _once(value: ir.Value) -> bool:
    return len(value.uses()) == 1 and not value.is_graph_output()


def _reader(value: ir.Value) -> ir.Node:
    """The first node that reads a value."""
    return next(iter(value.uses())).node


def _is_weight(trace: Traced, value: ir.Value) -> bool:
    return value.name in trace.sources and _once(value)


def _is_vector(part: ir.Value | None) -> bool:
    return part is not None and (part.shape is None or len(part.shape) < 2)


def _bias(trace: Traced, node: ir.Node) -> ir.Value | None:
    """The vector that only this product's sum reads."""
    (out,) = node.outputs
    if not _once(out):
        return None
    added = _reader(out)
    other = added.inputs[1] if added.op_type == "Add" and added.inputs[0] is out else None
    return other if other is not None and _is_weight(trace, other) and _is_vector(other) else None


def _join(
    graph: ir.Graph,
    group: Group,
    sources: dict[str, str],
    joined: dict[str, tuple[str, ...]],
) -> None:
    """Put one product and a Split in the place of a group."""
    first = group[0]
    parts = [
        _join_parts(graph, [product.parts[i] for product in group], sources, joined)
        for i in range(len(first.parts))
    ]
    nodes = _product_nodes(group, parts)
    if first.bias is not None:
        bias = _join_parts(graph, [product.bias for product in group], sources, joined)
        nodes.append(ir.node("Add", [nodes[-1].outputs[0], bias]))
    out, of_one = nodes[-1].outputs[0], first.output
    out.type = of_one.type
    if of_one.shape is not None:
        out.shape = ir.Shape([*of_one.shape[:-1], sum(product.rows for product in group)])
    sizes = ir.tensor(np.array([product.rows for product in group]), name=f"{out.name}.rows")
    rows = ir.node("Constant", [], {"value": sizes})
    split = ir.node("Split", [out, rows.outputs[0]], {"axis": -1}, num_outputs=len(group))
    graph.insert_before(_first_node(graph, group), [*nodes, rows, split])
    for product, part in zip(group, split.outputs, strict=True):
        part.type, part.shape = product.output.type, product.output.shape
        product.output.replace_all_uses_with(part)
        graph.remove(product.nodes[::-1], safe=True)


def _first_node(graph: ir.Graph, group: Group) -> ir.Node:
    """The first node of a group in the graph."""
    nodes = {node for product in group for node in product.nodes}
    return next(node for node in graph if node in nodes)


def _product_nodes(group: Group, parts: list[ir.Value | None]) -> list[ir.Node]:
    """The nodes of one product, of joined parts."""
    first = group[0]
    if first.nodes[0].op_type == "Transpose":
        turned = ir.node("Transpose", parts, first.nodes[0].attributes)
        return [turned, ir.node("MatMul", [first.states, turned.outputs[0]])]
    attributes = dict(first.nodes[0].attributes)
    attributes["N"] = ir.AttrInt64("N", sum(product.rows for product in group))
    if any("exact" in product.nodes[0].attributes for product in group):
        attributes["exact"] = ir.AttrInt64("exact", 1)
    return [ir.node(BLOCK_MATMUL, [first.states, *parts], attributes, domain=TRACE_DOMAIN)]


def _join_parts(
    graph: ir.Graph,
    parts: list[ir.Value | None],
    sources: dict[str, str],
    joined: dict[str, tuple[str, ...]],
) -> ir.Value | None:
    """The initializer of some parts' rows, which takes their place."""
    present = [part for part in parts if part is not None]
    if not present:
        return None
    members = tuple(sources.pop(str(part.name)) for part in present)
    name, shape = joined_name(members[0], len(members)), present[0].shape
    assert shape is not None
    rows = sum(part.shape.numpy()[0] for part in present if part.shape is not None)
    made = ir.Value(name=name, type=present[0].type, shape=ir.Shape([rows, *shape[1:]]))
    graph.initializers[name] = made
    for part in present:
        graph.initializers.pop(str(part.name))
    sources[name], joined[name] = name, members
    return made
