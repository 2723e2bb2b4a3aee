"""Rotates a token's q and k at once, before they are split.

       q, k, v = Split(x); q, k = RotaryEmbedding(q), RotaryEmbedding(k)
    -> q, k, v = Split(RotaryEmbedding(x))

The heads of all three take the place of positions, so that each has its own cosine and sine: those
of v are 1 and 0, which leave it as it is.
"""

from dataclasses import dataclass

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from numpy.typing import DTypeLike

from snapexport.graphs.passes.base import cut, fresh, int64s, node, only_reader

Tables = dict[tuple[object, ...], list[gs.Tensor]]


@dataclass(frozen=True)
class OneRotation:
    """Applies to steps of one token."""

    def apply(self, graph: gs.Graph) -> None:
        tables: Tables = {}
        for split in [n for n in graph.nodes if n.op == "Split"]:
            rotations = [_rotation(out) for out in split.outputs]
            if _is_one(split, [one for one in rotations if one is not None]):
                _rewrite(graph, split, rotations, tables)


def _rotation(out: gs.Tensor) -> gs.Node | None:
    """The node that rotates a Split's output [B,1,H*D], as [B,H,1,D]."""
    heads = only_reader(out)
    reader = only_reader(heads.outputs[0]) if heads is not None and heads.op == "Reshape" else None
    rotates = reader is not None and reader.op == "RotaryEmbedding" and len(reader.inputs) == 3
    return reader if rotates else None


def _is_one(split: gs.Node, rotations: list[gs.Node]) -> bool:
    """Whether rotations of a Split's outputs can be one, of one token in each row."""
    if len(rotations) < 2:
        return False
    first, shapes = rotations[0], [out.shape for out in split.outputs]
    width = _width(first)
    return (
        all(shape and len(shape) == 3 and shape[1] == 1 for shape in shapes)
        and all(shape[2] % width == 0 for shape in shapes)
        and all(_width(one) == width and one.attrs == first.attrs for one in rotations)
        and all(
            one is other
            for rotation in rotations
            for one, other in zip(rotation.inputs[1:], first.inputs[1:], strict=True)
        )
    )


def _width(rotation: gs.Node) -> int:
    return int(rotation.inputs[0].shape[3])


def _rewrite(
    graph: gs.Graph, split: gs.Node, rotations: list[gs.Node | None], tables: Tables
) -> None:
    first = next(one for one in rotations if one is not None)
    attributes, turns, width = dict(first.attrs), first.inputs[1:], _width(first)
    pairs = zip(split.outputs, rotations, strict=True)
    layout = tuple((out.shape[2] // width, one is not None) for out, one in pairs)
    if (key := (*map(id, turns), layout)) not in tables:
        both = zip(turns, (1, 0), strict=True)
        tables[key] = [_of_heads(graph, table, layout, still) for table, still in both]
    for rotation in filter(None, rotations):
        (states, *_), (rotated,) = cut(graph, rotation)
        (heads,) = states.inputs
        heads.outputs[0] = rotated
    states, batch = split.inputs[0], turns[0].shape[0]
    heads = sum(count for count, _ in layout)
    (as_rows,) = node(graph, "Reshape", [states, int64s(graph, batch, 1, heads, width)])
    rows = node(graph, "RotaryEmbedding", [as_rows, *tables[key]], **attributes)
    shape = int64s(graph, batch, 1, heads * width)
    (split.inputs[0],) = node(graph, "Reshape", [*rows, shape])


def _of_heads(
    graph: gs.Graph, table: gs.Tensor, layout: tuple[tuple[int, bool], ...], still: int
) -> gs.Tensor:
    """A table [B,1,D/2] for each head: [B,H,D/2]. still: the value of heads that don't turn."""
    batch, _, half = table.shape
    parts = []
    for heads, turns in layout:
        shape = (batch, heads, half)
        if turns:
            parts += node(graph, "Expand", [table, int64s(graph, *shape)])
        else:
            value = gs.Constant(fresh(graph, "still"), np.full(shape, still, np.float32))
            parts += node(graph, "Cast", [value], to=_onnx_type(table.dtype))
    return node(graph, "Concat", parts, axis=1)[0]


def _onnx_type(dtype: DTypeLike | int) -> int:
    """ONNX's number of a type: graphsurgeon has no other name for bf16."""
    if isinstance(dtype, int):
        return dtype
    return int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
