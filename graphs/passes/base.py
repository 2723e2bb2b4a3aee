"""Helpers of all passes: find the markers of a graph, append nodes, remove nodes."""

from typing import Protocol

import numpy as np
import onnx_graphsurgeon as gs

from snapexport.contract.names import DOMAIN, present_key
from snapexport.graphs.functions import EXPERTS, NAMES, Function
from snapexport.graphs.markers import CACHE_ATTENTION

MICROSOFT = "com.microsoft"
"""The domain of ONNX Runtime's own operators."""


class Pass(Protocol):
    """A change made to a graph in place."""

    def apply(self, graph: gs.Graph) -> None: ...


class SurgeryError(RuntimeError):
    """A graph is not what a pass expects. This is a defect of snapexport, not bad input."""


def markers(graph: gs.Graph, domain: str, op: str) -> list[tuple[int, gs.Node]]:
    """(layer, marker) in the layers' order. Raises SurgeryError for a layer with several.

    A graph that lacks one lacks its inputs and outputs, and is refused by the interface.
    """
    found = sorted(
        (node for node in graph.nodes if (node.domain, node.op) == (domain, op)),
        key=lambda node: int(node.attrs["layer"]),
    )
    layers = [int(node.attrs["layer"]) for node in found]
    if len(set(layers)) < len(layers):
        raise SurgeryError(f"{domain}::{op} marks the layers {layers}, some more than once")
    return list(zip(layers, found, strict=True))


def has_sink(marker: gs.Node) -> bool:
    """Whether a cache marker has a learned sink as its last input."""
    others = 7 if marker.op == CACHE_ATTENTION else 3
    return not marker.attrs["latent"] and len(marker.inputs) > others


def has_cache(graph: gs.Graph, layer: int) -> bool:
    """Whether a layer has a cache of its own in the graph."""
    return any(output.name == present_key(layer) for output in graph.outputs)


def linear_layers(graph: gs.Graph) -> list[tuple[gs.Node, gs.Constant]]:
    """(product, weight [N,K]) of each MatMul(x, Transpose(weight)), as a trace has them."""
    return [
        (product, transpose.inputs[0])
        for transpose in graph.nodes
        if transpose.op == "Transpose" and _is_matrix(transpose.inputs[0])
        for product in transpose.outputs[0].outputs
        if _takes_second(product, transpose.outputs[0])
    ]


def _is_matrix(tensor: gs.Tensor) -> bool:
    """Whether it is a weight of two dimensions, stored or dequantized."""
    if isinstance(tensor, gs.Constant):
        return len(tensor.shape) == 2
    made_by = [node.op for node in tensor.inputs]
    if made_by == ["Cast"]:
        made_by = [node.op for node in tensor.i(0).inputs]
    return made_by == ["DequantizeLinear"] and len(tensor.shape) == 2


def _takes_second(product: gs.Node, weight: gs.Tensor) -> bool:
    if product.op != "MatMul" or product.inputs[1] is not weight:
        raise SurgeryError(f"{product.op} reads the transposed weight {weight.name}")
    return True


def node(
    graph: gs.Graph,
    op: str,
    inputs: list[gs.Tensor],
    outputs: list[gs.Tensor] | None = None,
    *,
    domain: str | None = None,
    **attrs: object,
) -> list[gs.Tensor]:
    """Append a node and return its outputs: by default one new tensor."""
    outputs = outputs or [gs.Variable(fresh(graph, op))]
    graph.nodes.append(
        gs.Node(op, fresh(graph, op), dict(attrs), inputs=inputs, outputs=outputs, domain=domain)
    )
    return outputs


class FunctionCall(gs.Node):  # type: ignore[misc] # the package has no types
    """A call of one of our model-local functions, whose body the model then has to hold."""

    function: Function


def call(
    graph: gs.Graph,
    function: Function,
    inputs: list[gs.Tensor],
    outputs: list[gs.Tensor] | None = None,
    **attrs: object,
) -> list[gs.Tensor]:
    """Append a call of one of our functions, and return its outputs, as `node` does."""
    outputs = outputs or [gs.Variable(fresh(graph, function.name))]
    name = fresh(graph, function.name)
    called = FunctionCall(function.name, name, dict(attrs), inputs, outputs, domain=DOMAIN)
    called.function = function
    graph.nodes.append(called)
    return outputs


def called_functions(graph: gs.Graph) -> list[Function]:
    """The functions that the graph calls. Raises SurgeryError for one name with two bodies."""
    calls = [one.function for one in graph.nodes if isinstance(one, FunctionCall)]
    found = dict.fromkeys(calls)
    by_name = {function.name: function for function in found}
    if len(by_name) < len(found):
        raise SurgeryError(f"calls of {sorted(by_name)} need different bodies")
    others = NAMES.index(EXPERTS[0]) - 0.5
    order = {name: float(index) for index, name in enumerate(NAMES)}
    return sorted(found, key=lambda function: order.get(function.name, others))


def written(
    graph: gs.Graph,
    pasts: list[gs.Tensor],
    rows: list[gs.Tensor],
    slot: gs.Tensor,
    presents: list[gs.Tensor],
) -> list[gs.Tensor]:
    """Caches with new rows from cache slot `slot` on: the outputs of a cache marker.

    A marker without such outputs has pasts that hold the rows already.
    """
    if not presents:
        return pasts
    for past, new, present in zip(pasts, rows, presents, strict=True):
        node(graph, "TensorScatter", [past, new, slot], [present], axis=-2, mode="linear")
    return presents


def fresh(graph: gs.Graph, stem: str) -> str:
    """A name that no other call of `fresh` returns for this graph."""
    graph.name_idx += 1
    return f"{stem}_{graph.name_idx}"


def int64s(graph: gs.Graph, *values: int) -> gs.Constant:
    """A 1-D int64 constant."""
    return gs.Constant(fresh(graph, "const"), np.array(values, np.int64))


def computed_range(graph: gs.Graph, start: int, stop: int) -> gs.Tensor:
    """Int64 [stop - start], computed by a node so that the file does not hold it."""
    scalars = [np.array(value, np.int64) for value in (start, stop, 1)]
    return node(graph, "Range", [gs.Constant(fresh(graph, "const"), s) for s in scalars])[0]


def on_the_host(graph: gs.Graph, value: gs.Tensor) -> gs.Tensor:
    """The same int64 values, for inputs that a GPU's operators read from the host: sizes and ends.

    ONNX Runtime's CUDA provider does not wait until a value that it has calculated is there. It has
    no BitwiseOr, though, and waits for what is left to the CPU.
    """
    return node(graph, "BitwiseOr", [value, int64s(graph, 0)])[0]


def graph_input(graph: gs.Graph, name: str) -> gs.Variable:
    """The graph's input of that name."""
    return next(tensor for tensor in graph.inputs if tensor.name == name)


def graph_output(graph: gs.Graph, name: str) -> gs.Variable:
    """The graph's output of that name."""
    return next(tensor for tensor in graph.outputs if tensor.name == name)


def producer(tensor: gs.Tensor) -> gs.Node | None:
    """The node that makes a tensor; None for inputs and constants."""
    return tensor.inputs[0] if tensor.inputs else None


def only_reader(tensor: gs.Tensor) -> gs.Node | None:
    """The node that reads a tensor, if one does, once."""
    return tensor.outputs[0] if len(tensor.outputs) == 1 else None


def cut(graph: gs.Graph, old: gs.Node) -> tuple[list[gs.Tensor], list[gs.Tensor]]:
    """Remove a node; returns its inputs and outputs, for the nodes that replace it."""
    inputs, outputs = list(old.inputs), list(old.outputs)
    old.inputs.clear()
    old.outputs.clear()
    del graph.nodes[next(i for i, node in enumerate(graph.nodes) if node is old)]
    return inputs, outputs
