"""Rotates the mean query of texts to the positions behind a prompt, by a trace's own RoPE.

`stamp` writes what was measured into a trace's attention markers, so that graphs of other caches
can be made of it too. The mean query is rotated to 17 positions, of which the last is 65,536 tokens
away, and these are averaged (TriAttention, arXiv:2604.04921). Rotation is linear in the cosines and
sines, so these are averaged in its place.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from snapexport.errors import UserError
from snapexport.graphs.markers import ATTENTION, TRACE_DOMAIN
from snapexport.graphs.passes.base import SurgeryError, fresh, int64s, node

FAR = tuple(1 << n for n in range(17))
"""Tokens from a prompt's last position to those that the mean query is rotated to."""
_MEAN, _MAGNITUDE = "mean_query", "query_magnitude"

Floats = NDArray[np.float32]


class LayerQueries(NamedTuple):
    """A layer's queries before RoPE over texts. mean: [H,D]. magnitude: of each pair, [H,P]."""

    mean: Floats
    magnitude: Floats


class Rotation(NamedTuple):
    """How RoPE rotates a layer's queries. pairs: 0 where it does not. taken: what it rotates."""

    interleaved: bool
    pairs: int
    taken: gs.Tensor
    node: gs.Node | None

    def paired(self, states: NDArray[np.floating[Any]]) -> NDArray[Any]:
        """The pairs [...,P] of states [...,D]."""
        rotated = states[..., : 2 * self.pairs]
        if self.interleaved:
            return rotated[..., ::2] + 1j * rotated[..., 1::2]
        return rotated[..., : self.pairs] + 1j * rotated[..., self.pairs :]


class MeanQuery(NamedTuple):
    """A layer's mean query behind a prompt, float32 [1,H,1,D]. excess: float32 [1,H,P], as
    CalibratedVotes has it."""

    query: gs.Tensor
    excess: gs.Tensor
    interleaved: bool


def stamp(traced: onnx.ModelProto, layers: Mapping[int, LayerQueries]) -> None:
    """Write measured queries into a trace's markers."""
    for marker in traced.graph.node:
        if (marker.domain, marker.op_type) == (TRACE_DOMAIN, ATTENTION):
            index = next(one.i for one in marker.attribute if one.name == "layer")
            if index in layers:
                for name, values in zip((_MEAN, _MAGNITUDE), layers[index], strict=True):
                    floats = onnx.AttributeProto.FLOATS
                    one = onnx.helper.make_attribute(name, values.ravel().tolist(), None, floats)
                    marker.attribute.append(one)


def rotation_of(query: gs.Tensor) -> Rotation:
    """The RoPE that makes the query of an attention marker. Raises UserError for other forms."""
    (made_by,) = query.inputs
    if made_by.op == "RotaryEmbedding":
        given = int(made_by.attrs.get("rotary_embedding_dim", 0))
        interleaved, pairs = bool(made_by.attrs.get("interleaved", 0)), given or query.shape[-1]
        return Rotation(interleaved, pairs // 2, made_by.inputs[0], made_by)
    while made_by.op in ("Transpose", "Reshape"):
        (made_by,) = made_by.inputs[0].inputs
    if made_by.op not in ("MatMul", "Add"):
        raise UserError(
            f"--vote-queries calibrated is not supported for this model: its queries come from "
            f"{made_by.op}, and not from RoPE",
            "use the queries of prompts: --vote-queries prompt",
        )
    return Rotation(False, 0, query, None)


def mean_query(
    graph: gs.Graph, marker: gs.Node, query: gs.Tensor, length: gs.Tensor, angles: "MeanAngles"
) -> MeanQuery:
    """The mean query of a marker, whose query is `query`, behind a prompt of `length`, int64 [1].

    Raises UserError for a trace without measured queries.
    """
    if _MEAN not in marker.attrs:
        raise UserError(
            "these graphs hold no mean queries",
            "build it again with --vote-queries calibrated and --mean-queries FILE",
        )
    _, heads, _, width = query.shape
    rotation = rotation_of(query)
    mean = np.array(marker.attrs[_MEAN], np.float32).reshape(heads, width)
    magnitude = np.array(marker.attrs[_MAGNITUDE], np.float32)
    magnitude = magnitude.reshape(heads, len(magnitude) // heads)
    if magnitude.shape[1] != rotation.pairs:
        raise UserError(
            f"layer {marker.attrs['layer']} has magnitudes of {magnitude.shape[1]} pairs, and RoPE "
            f"rotates {rotation.pairs}",
            "use mean queries of this model",
        )
    excess = np.zeros((heads, 1), np.float32)
    if rotation.pairs:
        excess = np.maximum(magnitude - np.abs(rotation.paired(mean)), 0)
    rotated: gs.Tensor = gs.Constant(fresh(graph, "mean_query"), mean[None, :, None])
    if rotation.node is not None:
        whole = gs.Variable(fresh(graph, "rotated"), np.float32, (1, heads, 1, width))
        by = angles.at(rotation.node, length)
        node(graph, "RotaryEmbedding", [rotated, *by], [whole], **rotation.node.attrs)
        rotated = whole
    return MeanQuery(
        rotated, gs.Constant(fresh(graph, "excess"), excess[None]), rotation.interleaved
    )


class MeanAngles:
    """Mean cosines and sines of the positions behind a prompt, in a graph that may be another one
    than the trace's. Layers that RoPE rotates alike share them."""

    def __init__(self, graph: gs.Graph, tokens: int) -> None:
        """tokens: of the trace's chunk."""
        self._graph, self._tokens = graph, tokens
        self._means: dict[tuple[int, ...], list[gs.Tensor]] = {}

    def at(self, rotary: gs.Node, length: gs.Tensor) -> list[gs.Tensor]:
        """Float32 cosines and sines [1,1,P]."""
        angles = rotary.inputs[1:3]
        key = tuple(map(id, angles))
        if key not in self._means:
            rows: list[list[gs.Tensor]] = [[], []]
            for first in range(0, len(FAR), self._tokens):
                behind = self._behind(length, FAR[first : first + self._tokens])
                known = {id(one): behind for one in _positions(angles, self._tokens)}
                for found, one in zip(rows, angles, strict=True):
                    found.append(_copied(self._graph, one, known))
            self._means[key] = [self._mean(found) for found in rows]
        return self._means[key]

    def _behind(self, length: gs.Tensor, offsets: tuple[int, ...]) -> gs.Tensor:
        """Positions [1,C], as many as a chunk has: the last one again for what is missing."""
        graph, rest = self._graph, self._tokens - len(offsets)
        ahead = np.array([[*offsets, *offsets[-1:] * rest]], np.int64) - 1
        constant = gs.Constant(fresh(graph, "ahead"), ahead)
        positions = gs.Variable(fresh(graph, "behind"), np.int64, ahead.shape)
        return node(graph, "Add", [length, constant], [positions])[0]

    def _mean(self, rows: list[gs.Tensor]) -> gs.Tensor:
        """Of the first rows, of which there are more than positions."""
        graph = self._graph
        every = node(graph, "Concat", rows, axis=1)
        first = node(graph, "Slice", [*every, *(int64s(graph, n) for n in (0, len(FAR), 1))])
        (as_floats,) = node(graph, "Cast", first, to=onnx.TensorProto.FLOAT)
        mean = gs.Variable(fresh(graph, "mean"), np.float32, (1, 1, rows[0].shape[-1]))
        return node(graph, "ReduceMean", [as_floats, int64s(graph, 1)], [mean], keepdims=1)[0]


def _positions(angles: Iterable[gs.Tensor], tokens: int) -> list[gs.Tensor]:
    """The position ids [1,C] that angles are computed from."""
    found: dict[int, gs.Tensor] = {}
    waiting = list(angles)
    while waiting:
        tensor = waiting.pop()
        before = [one for maker in tensor.inputs for one in maker.inputs if not _is_constant(one)]
        if _is_row(tensor, tokens) and not any(_is_row(one, tokens) for one in before):
            found[id(tensor)] = tensor
        else:
            waiting += before
    if not found:
        raise SurgeryError("the angles of RoPE do not come from positions")
    return list(found.values())


def _is_row(tensor: gs.Tensor, tokens: int) -> bool:
    return tensor.dtype == np.int64 and tuple(tensor.shape or ()) == (1, tokens)


def _is_constant(tensor: gs.Tensor) -> bool:
    return isinstance(tensor, gs.Constant)


def _copied(graph: gs.Graph, tensor: gs.Tensor, known: dict[int, gs.Tensor]) -> gs.Tensor:
    """The tensor as another graph computes it from what is known."""
    if id(tensor) not in known:
        if _is_constant(tensor):
            known[id(tensor)] = gs.Constant(fresh(graph, "const"), np.array(tensor.values))
        elif not tensor.inputs:
            raise SurgeryError(f"the angles of RoPE come from {tensor.name}")
        else:
            (maker,) = tensor.inputs
            inputs = [_copied(graph, one, known) for one in maker.inputs]
            outputs = [
                gs.Variable(fresh(graph, one.name), one.dtype, one.shape) for one in maker.outputs
            ]
            node(graph, maker.op, inputs, outputs, domain=maker.domain, **maker.attrs)
            known |= {id(old): new for old, new in zip(maker.outputs, outputs, strict=True)}
    return known[id(tensor)]
