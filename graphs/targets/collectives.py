"""Replaces the markers of --tensor-parallel by a target's collectives.

    trace::AllReduce(x)    -> sum = AllReduce(x)
    trace::AllGather(x)    -> all = AllGather(x), along axis 0; then parts go to their own axis
    trace::AllToAll(x)     -> theirs = AllToAll(x), of parts along axis 0

Collectives gather along the first axis: there each rank's part is together in memory.
"""

from dataclasses import dataclass
from typing import ClassVar

import onnx
import onnx_graphsurgeon as gs

from snapexport.contract import names
from snapexport.graphs.markers import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, TRACE_DOMAIN
from snapexport.graphs.passes.base import cut, fresh, int64s, node

DIST_COLLECTIVE = "DistCollective"


_Operator = tuple[str, str | None, dict[str, object]]
"""Name, domain and attributes."""


@dataclass(frozen=True)
class Collectives:
    """Operators of our domain, without a body: at these the graph is cut into segments."""

    operators: ClassVar[dict[str, _Operator]] = {
        ALL_REDUCE: (names.ALL_REDUCE, names.DOMAIN, {}),
        ALL_GATHER: (names.ALL_GATHER, names.DOMAIN, {}),
        ALL_TO_ALL: (names.ALL_TO_ALL, names.DOMAIN, {}),
    }

    def apply(self, graph: gs.Graph) -> None:
        found = [n for n in graph.nodes if n.domain == TRACE_DOMAIN and n.op in self.operators]
        for marker in found:
            operator, ranks = self.operators[marker.op], int(marker.attrs["ranks"])
            axis = int(marker.attrs["axis"]) if marker.op == ALL_GATHER else None
            (part,), (out,) = cut(graph, marker)
            if not part.inputs:  # a segment's output has to be some node's
                (part,) = node(graph, "Identity", [part], [_like(graph, part)])
            if axis is None:
                self._collective(graph, operator, ranks, part, out)
            else:
                self._gather(graph, operator, ranks, axis, part, out)

    def _gather(
        self,
        graph: gs.Graph,
        operator: _Operator,
        ranks: int,
        axis: int,
        part: gs.Tensor,
        out: gs.Tensor,
    ) -> None:
        rows, *others = part.shape
        parts = gs.Variable(fresh(graph, "parts"), part.dtype, (ranks * rows, *others))
        self._collective(graph, operator, ranks, part, parts)
        (split,) = node(graph, "Reshape", [parts, int64s(graph, ranks, rows, *others)])
        order = [*range(1, axis + 1), 0, *range(axis + 1, len(part.shape) + 1)]
        (moved,) = node(graph, "Transpose", [split], perm=order)
        joined = [size * ranks if one == axis else size for one, size in enumerate(part.shape)]
        node(graph, "Reshape", [moved, int64s(graph, *joined)], [out])

    def _collective(
        self, graph: gs.Graph, operator: _Operator, ranks: int, part: gs.Tensor, out: gs.Tensor
    ) -> None:
        name, domain, attributes = operator
        node(graph, name, [part], [out], domain=domain, **attributes, **self._of_ranks(ranks))

    def _of_ranks(self, ranks: int) -> dict[str, object]:
        return {"ranks": ranks}


def _like(graph: gs.Graph, tensor: gs.Tensor) -> gs.Variable:
    return gs.Variable(fresh(graph, "part"), tensor.dtype, tensor.shape)


@dataclass(frozen=True)
class DistCollectives(Collectives):
    """TensorRT's operator, with the attributes that `polygraphy multi-device shard` writes."""

    operators: ClassVar[dict[str, _Operator]] = {
        marker: (
            DIST_COLLECTIVE,
            None,
            {"collective_operation": operation, "reduce_op": reduction},
        )
        for marker, operation, reduction in (
            (ALL_REDUCE, "all_reduce", "sum"),
            (ALL_GATHER, "all_gather", "none"),
            # Polygraphy shards by none of these; the parser takes it.
            (ALL_TO_ALL, "all_to_all", "none"),
        )
    }

    def _of_ranks(self, ranks: int) -> dict[str, object]:
        return {"nb_rank": ranks, "group_size": 0, "root": -1}


def add_groups(model: onnx.ModelProto) -> None:
    """Give each DistCollective the attribute `groups`, empty for all ranks.

    onnx-graphsurgeon cannot write an empty list: it does not know its type.
    """
    for one in model.graph.node:
        if one.op_type == DIST_COLLECTIVE:
            groups = onnx.helper.make_attribute("groups", [], attr_type=onnx.AttributeProto.INTS)
            one.attribute.append(groups)
