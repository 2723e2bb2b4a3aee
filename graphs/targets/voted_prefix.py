"""The vote over a prompt's own positions alone, where the runtime can slice as it runs.

SnapKVSelect looks at every position of a full-length cache: with a short prompt in a cache for long
ones, at almost nothing but padding. ONNX Runtime takes tensors whose size is known only then;
TensorRT, whose plugin stops at the prompt's end by itself, does not.
"""

from dataclasses import dataclass

import onnx_graphsurgeon as gs

from snapexport.contract.names import DOMAIN
from snapexport.graphs.passes.base import int64s, node

_POSITIONS = 2
"""The axis of positions in key [1,Hkv,T,D]."""


@dataclass(frozen=True)
class VotedPrefix:
    """Every vote of the graph, given the keys up to the prompt's end."""

    def apply(self, graph: gs.Graph) -> None:
        for vote in [n for n in graph.nodes if (n.domain, n.op) == (DOMAIN, "SnapKVSelect")]:
            _, key, prompt_length = vote.inputs
            (K,) = vote.attrs["K"]
            # TopK wants K of them, however short the prompt.
            (end,) = node(graph, "Max", [prompt_length, int64s(graph, K)])
            slices = [int64s(graph, 0), end, int64s(graph, _POSITIONS)]
            (vote.inputs[1],) = node(graph, "Slice", [key, *slices])
