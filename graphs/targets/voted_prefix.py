"""Gives SnapKVSelect only the keys of the prompt, for runtimes that can slice by a computed length.

SnapKVSelect reads every position of a full-length cache, which for a short prompt is mostly
padding. ONNX Runtime takes tensors of a computed size. TensorRT does not, but its plugin stops at
the prompt's end.
"""

from dataclasses import dataclass

import onnx_graphsurgeon as gs

from snapexport.contract.names import DOMAIN
from snapexport.graphs.passes.base import int64s, node

_POSITIONS = 2
"""The axis of positions in key [1,Hkv,T,D]."""


@dataclass(frozen=True)
class VotedPrefix:
    """Slices the keys of every vote in the graph."""

    def apply(self, graph: gs.Graph) -> None:
        for vote in [n for n in graph.nodes if (n.domain, n.op) == (DOMAIN, "SnapKVSelect")]:
            _, key, prompt_length = vote.inputs
            (K,) = vote.attrs["K"]
            # TopK needs at least K positions.
            (end,) = node(graph, "Max", [prompt_length, int64s(graph, K)])
            reader, at = _first_reader(vote, key)
            for index in at:
                slices = [int64s(graph, 0), end, int64s(graph, _POSITIONS)]
                (reader.inputs[index],) = node(graph, "Slice", [reader.inputs[index], *slices])


def _first_reader(vote: gs.Node, key: gs.Tensor) -> tuple[gs.Node, range]:
    """The node that reads the keys first, and at which inputs: the vote, or latents' Concat."""
    if key.inputs and key.inputs[0].op == "Concat":
        key.shape = None  # it is now as long as the prompt
        return key.inputs[0], range(len(key.inputs[0].inputs))
    return vote, range(1, 2)
