"""Makes each layer's vote wait for the one before.

The votes of a compress graph depend on nothing of each other, and a compiler plans them side by
side: the scores of all layers are alive at the same time. TensorRT for RTX 1.7 took 15 GB of
scratch memory for Llama-3.1-8B's shapes at 131,072 positions, and takes 0.2 GB for votes in turn.
"""

from dataclasses import dataclass
from itertools import pairwise

import onnx_graphsurgeon as gs

from snapexport.contract.names import DOMAIN
from snapexport.graphs.passes.base import int64s, node

_VOTES = "SnapKVSelect", "RepetitionVotes"
_INT64 = 7  # onnx.TensorProto.INT64
_UNUSED = -1
"""The smallest value of topk_positions."""


@dataclass(frozen=True)
class VotesInTurn:
    """Computes the prompt length of each vote from what came out of the last."""

    def apply(self, graph: gs.Graph) -> None:
        votes = [n for n in graph.nodes if n.domain == DOMAIN and n.op in _VOTES]
        for earlier, later in pairwise(votes):
            unused = int64s(graph, _UNUSED)
            lowest = node(graph, "ReduceMin", [earlier.outputs[0]], keepdims=0)
            if earlier.op == "RepetitionVotes":
                lowest = node(graph, "Cast", lowest, to=_INT64)
            # It is -1 whatever was kept, and the largest of it and a length is the length.
            bound = node(graph, "Min", [*lowest, unused])
            (later.inputs[2],) = node(graph, "Max", [later.inputs[2], *bound])
