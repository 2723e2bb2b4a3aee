"""Helpers of all passes: find every marker of a graph or fail, append nodes, cut them out."""

from typing import Protocol

import numpy as np
import onnx_graphsurgeon as gs

from snapexport.contract.names import DOMAIN


class Pass(Protocol):
    """A change made to a graph in place."""

    def apply(self, graph: gs.Graph) -> None: ...


class SurgeryError(RuntimeError):
    """A pass did not find the graph that it expects: our defect, not the user's."""


def markers(graph: gs.Graph, domain: str, op: str) -> list[tuple[int, gs.Node]]:
    """(layer, node) of each marker, in the order of the layers, each layer exactly once."""
    found = sorted(
        (node for node in graph.nodes if (node.domain, node.op) == (domain, op)),
        key=lambda node: int(node.attrs["layer"]),
    )
    layers = [int(node.attrs["layer"]) for node in found]
    if not layers or layers != list(range(len(layers))):
        raise SurgeryError(f"{domain}::{op} stands for the layers {layers}")
    return list(zip(layers, found, strict=True))


def node(
    graph: gs.Graph,
    op: str,
    inputs: list[gs.Tensor],
    outputs: list[gs.Tensor] | None = None,
    *,
    domain: str | None = None,
    **attrs: object,
) -> list[gs.Tensor]:
    """Append a node and return its outputs: one new tensor unless others are given."""
    outputs = outputs or [gs.Variable(fresh(graph, op))]
    graph.nodes.append(
        gs.Node(op, fresh(graph, op), dict(attrs), inputs=inputs, outputs=outputs, domain=domain)
    )
    return outputs


def call(
    graph: gs.Graph,
    function: str,
    inputs: list[gs.Tensor],
    outputs: list[gs.Tensor] | None = None,
    **attrs: object,
) -> list[gs.Tensor]:
    """Append a call of one of our model-local functions."""
    return node(graph, function, inputs, outputs, domain=DOMAIN, **attrs)


def fresh(graph: gs.Graph, stem: str) -> str:
    """A name that no other node or tensor of ours has."""
    graph.name_idx += 1
    return f"{stem}_{graph.name_idx}"


def int64s(graph: gs.Graph, *values: int) -> gs.Constant:
    """A 1-D int64 constant."""
    return gs.Constant(fresh(graph, "const"), np.array(values, np.int64))


def graph_input(graph: gs.Graph, name: str) -> gs.Variable:
    """An existing input by its name."""
    return next(tensor for tensor in graph.inputs if tensor.name == name)


def cut(graph: gs.Graph, old: gs.Node) -> tuple[list[gs.Tensor], list[gs.Tensor]]:
    """Take a node out; its inputs and outputs are free for what comes in its place."""
    inputs, outputs = list(old.inputs), list(old.outputs)
    old.inputs.clear()
    old.outputs.clear()
    del graph.nodes[next(i for i, one in enumerate(graph.nodes) if one is old)]
    return inputs, outputs
