"""Lets attention that appends to its cache read q, k and v together: no Split."""

from dataclasses import dataclass

import onnx_graphsurgeon as gs

from snapexport.graphs.passes.base import cut, only_reader, producer


@dataclass(frozen=True)
class PackedAttention:
    """Applies to one token of each row, where nothing else reads q, k or v."""

    def apply(self, graph: gs.Graph) -> None:
        for attention in [n for n in graph.nodes if n.op == "GroupQueryAttention"]:
            parts = [_part_of_split(one) for one in attention.inputs[:3]]
            split = producer(parts[0]) if parts[0] is not None else None
            if split is not None and _has_just(split, parts):
                (states, *_), _ = cut(graph, split)
                none = gs.Variable.empty
                attention.inputs = [states, none(), none(), *attention.inputs[3:]]


def _part_of_split(states: gs.Tensor) -> gs.Tensor | None:
    """A Split's output that becomes these states by reshapes only."""
    while only_reader(states) is not None and (made := producer(states)) is not None:
        if made.op == "Split":
            return states
        if made.op != "Reshape":
            return None
        states = made.inputs[0]
    return None


def _has_just(split: gs.Node, parts: list[gs.Tensor | None]) -> bool:
    """Whether the parts are the Split's outputs in order, of one token each."""
    return len(split.outputs) == len(parts) and all(
        len(one.shape or ()) == 3 and one.shape[1] == 1 and one is other
        for one, other in zip(split.outputs, parts, strict=True)
    )
