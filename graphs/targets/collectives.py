"""Replaces the markers of --tensor-parallel by a target's collectives.

    trace::AllReduce(x)    -> sum = AllReduce(x)
    trace::AllGather(x)    -> all = AllGather(x), along axis 0; then parts go to their own axis
    trace::AllToAll(x)     -> theirs = AllToAll(x), of parts along axis 0

Collectives gather along the first axis: there each rank's part is together in memory.
"""

from dataclasses import dataclass

import onnx
import onnx_graphsurgeon as gs

from snapexport.contract import names
from snapexport.graphs.markers import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, TRACE_DOMAIN
from snapexport.graphs.passes.base import cut, fresh, int64s, node

DIST_COLLECTIVE = "DistCollective"
_OPERATIONS = {
    ALL_REDUCE: ("all_reduce", "sum"),
    ALL_GATHER: ("all_gather", "none"),
    # Polygraphy shards by none of these; the parser takes it.
    ALL_TO_ALL: ("all_to_all", "none"),
}
"""DistCollective's operation and reduction, by the marker."""


@dataclass(frozen=True)
class Collectives:
    """Operators of our domain, without a body: at these the graph is cut into segments."""

    def apply(self, graph: gs.Graph) -> None:
        for marker in [n for n in graph.nodes if n.domain == TRACE_DOMAIN and n.op in _OPERATIONS]:
            op, ranks = marker.op, int(marker.attrs["ranks"])
            axis = int(marker.attrs["axis"]) if op == ALL_GATHER else None
            (part,), (out,) = cut(graph, marker)
            if not part.inputs:  # a segment's output has to be some node's
                like = gs.Variable(fresh(graph, "part"), part.dtype, part.shape)
                (part,) = node(graph, "Identity", [part], [like])
            if axis is None:
                self._collective(graph, op, ranks, part, out)
            else:
                self._gather(graph, ranks, axis, part, out)

    def _gather(
        self, graph: gs.Graph, ranks: int, axis: int, part: gs.Tensor, out: gs.Tensor
    ) -> None:
        rows, *others = part.shape
        parts = gs.Variable(fresh(graph, "parts"), part.dtype, (ranks * rows, *others))
        self._collective(graph, ALL_GATHER, ranks, part, parts)
        (split,) = node(graph, "Reshape", [parts, int64s(graph, ranks, rows, *others)])
        order = [*range(1, axis + 1), 0, *range(axis + 1, len(part.shape) + 1)]
        (moved,) = node(graph, "Transpose", [split], perm=order)
        joined = [size * ranks if one == axis else size for one, size in enumerate(part.shape)]
        node(graph, "Reshape", [moved, int64s(graph, *joined)], [out])

    def _collective(
        self, graph: gs.Graph, op: str, ranks: int, part: gs.Tensor, out: gs.Tensor
    ) -> None:
        """op: the marker's name, which is the operator's too."""
        node(graph, op, [part], [out], domain=names.DOMAIN, ranks=ranks)


@dataclass(frozen=True)
class DistCollectives(Collectives):
    """TensorRT's operator, with the attributes that `polygraphy multi-device shard` writes."""

    def _collective(
        self, graph: gs.Graph, op: str, ranks: int, part: gs.Tensor, out: gs.Tensor
    ) -> None:
        operation, reduction = _OPERATIONS[op]
        node(
            graph,
            DIST_COLLECTIVE,
            [part],
            [out],
            collective_operation=operation,
            reduce_op=reduction,
            nb_rank=ranks,
            group_size=0,
            root=-1,
        )


def add_groups(model: onnx.ModelProto) -> None:
    """Give each DistCollective the attribute `groups`, empty for all ranks.

    onnx-graphsurgeon cannot write an empty list: it does not know its type.
    """
    for one in model.graph.node:
        if one.op_type == DIST_COLLECTIVE:
            groups = onnx.helper.make_attribute("groups", [], attr_type=onnx.AttributeProto.INTS)
            one.attribute.append(groups)
