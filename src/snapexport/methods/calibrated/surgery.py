"""Rotates the mean query of texts to the positions after a prompt, by a trace's own RoPE.

`stamp` writes what was measured into a trace's attention markers, so that graphs of other caches
can be made of it too. The mean query is rotated to 17 positions, of which the last is 65,536 tokens
away, and these are averaged (TriAttention, arXiv:2604.04921). Rotation is linear in the cosines and
sines, so these are averaged in its place.

CalibratedVotes: what a cached key is worth to a mean query, by TriAttention (arXiv:2604.04921).

query float32 [1,H,1,D], excess float32 [1,H,P], key [1,Hkv,T,D], prompt_length int64 [1]
    -> votes float32 [1,Hkv,T].
Attributes: L_sink, L_recent (int), K (ints, [K]), as of SnapKVSelect.

query is the mean query of texts, rotated to the positions after the prompt. The first 2P channels
of a key are P pairs that RoPE rotates. excess has, for each, E|q| - |E q|: the mean magnitude of
the queries' pair, less the magnitude of its mean. The score is

    key . query + sum over pairs of excess * |pair of key|

in standard deviations over the eligible positions, and of the query heads of a KV head the largest
one counts. The least vote is 0.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.graph_options import GraphOptions
from snapexport.contract.slots import LayerGeometry
from snapexport.errors import UserError
from snapexport.graphs.compression import PromptStates, Scorer, Voting, window_of
from snapexport.graphs.functions import Function
from snapexport.graphs.functions.vote import CONSTANTS, ELIGIBLE
from snapexport.graphs.markers import ATTENTION, TRACE_DOMAIN
from snapexport.graphs.method import MethodSurgery
from snapexport.graphs.passes.base import SurgeryError, call, fresh, int64s, node
from snapexport.graphs.passes.cache import of_heads
from snapexport.methods.calibrated.queries import LayerQueries, MeanQueries
from snapexport.methods.calibrated.spec import CalibratedOptions

_TEXT = (
    """
<domain: "snapexport", opset_import: ["": 24]>
CalibratedVotes <L_sink, L_recent, K> (query, excess, key, prompt_length) => (votes)
{
"""
    + CONSTANTS
    + """
  T = Shape <start = 2, end = 3> (key)
"""
    + ELIGIBLE
    + """
  # Products [1, Hkv, T, G], the query heads folded into their KV head.
  rest = Constant <value_ints = [-1]> ()
  keys = Cast <to = 1> (key)
  kv_heads = Shape <start = 0, end = 2> (key)
  head_dim = Shape <start = 3> (key)
  folded_shape = Concat <axis = 0> (kv_heads, rest, head_dim)
  folded = Reshape (query, folded_shape)
  columns = Transpose <perm = [0, 1, 3, 2]> (folded)
  products = MatMul (keys, columns)

  # The pairs' magnitudes.
  two = Constant <value_ints = [2]> ()
  none = Constant <value_ints = [0]> ()
  channels = Constant <value_ints = [3]> ()
  of_pair = Constant <value_ints = [%(of_pair)s]> ()
  pairs = Shape <start = 2> (excess)
  width = Mul (pairs, two)
  rotated = Slice (keys, none, width, channels)
  pair_shape = Concat <axis = 0> (kv_heads, T, %(shape)s)
  paired = Reshape (rotated, pair_shape)
  magnitudes = ReduceL2 <keepdims = 0> (paired, of_pair)
  excess_shape = Concat <axis = 0> (kv_heads, rest, pairs)
  folded_excess = Reshape (excess, excess_shape)
  excess_columns = Transpose <perm = [0, 1, 3, 2]> (folded_excess)
  without_direction = MatMul (magnitudes, excess_columns)
  scores = Add (products, without_direction)

  # In standard deviations over the eligible positions.
  row = Unsqueeze (is_eligible, rest)
  counted = Cast <to = 1> (row)
  eligible_count = ReduceSum <keepdims = 1> (counted)
  at_least = Constant <value_float = 1.0> ()
  count = Max (eligible_count, at_least)
  known = Where (row, scores, no_vote)
  total = ReduceSum <keepdims = 1> (known, window_axis)
  mean = Div (total, count)
  distance = Sub (scores, mean)
  apart = Where (row, distance, no_vote)
  square = Mul (apart, apart)
  squares = ReduceSum <keepdims = 1> (square, window_axis)
  variance = Div (squares, count)
  deviation = Sqrt (variance)
  tiny = Constant <value_float = 1.0e-20> ()
  divisor = Max (deviation, tiny)
  standard = Div (apart, divisor)
  best = ReduceMax <keepdims = 0> (standard, channels)
  least = ReduceMin <keepdims = 1> (best, window_axis)
  votes = Sub (best, least)
}
"""
)


def calibrated_votes(interleaved: bool) -> Function:
    """interleaved: pairs are channels 2i and 2i + 1, and not i and i + P."""
    places = (
        {"of_pair": 4, "shape": "pairs, two"}
        if interleaved
        else {"of_pair": 3, "shape": "two, pairs"}
    )
    return Function("CalibratedVotes", _TEXT % places)


FAR = tuple(1 << n for n in range(17))
"""Tokens from a prompt's last position to those that the mean query is rotated to."""
_MEAN, _MAGNITUDE = "mean_query", "query_magnitude"


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


@dataclass(frozen=True)
class MeanQuery:
    """A layer's mean query after a prompt, float32 [1,H,1,D]. excess: float32 [1,H,P], as
    CalibratedVotes has it."""

    query: gs.Tensor
    excess: gs.Tensor
    interleaved: bool
    is_pooled = True
    kept_as = None

    @property
    def given(self) -> gs.Tensor:
        raise NotImplementedError("scores follow from the keys")

    def of_entries(self, given: gs.Tensor) -> "MeanQuery":
        return self

    def of(self, graph: gs.Graph, heads: Sequence[int], queries: Sequence[int]) -> "MeanQuery":
        query, excess = (of_heads(graph, one, queries) for one in (self.query, self.excess))
        return MeanQuery(query, excess, self.interleaved)

    def votes(self, graph: gs.Graph, states: PromptStates, layout: LayerGeometry) -> gs.Tensor:
        inputs = [self.query, self.excess, states.key, states.prompt_length]
        votes = gs.Variable(fresh(graph, "votes"), np.float32, states.key.shape[:3])
        function = calibrated_votes(self.interleaved)
        call(graph, function, inputs, [votes], K=[layout.K], **window_of(layout))
        return votes


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
    """The mean query of a marker, whose query is `query`, after a prompt of `length`, int64 [1].

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
    """Mean cosines and sines of the positions after a prompt, in a graph that may be another one
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
        """The mean of the first rows: there are more rows than positions."""
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


class CalibratedVoting(Voting):
    """No window: the mean query of texts votes, after what was taken of a prompt."""

    def __init__(
        self, graph: gs.Graph, geometry: CacheGeometry, options: GraphOptions, tokens: int
    ) -> None:
        super().__init__(graph, geometry, options, tokens)
        self._angles = MeanAngles(graph, tokens)

    def scorer(
        self, layer: int, marker: gs.Node, query: gs.Tensor, length: gs.Tensor
    ) -> Scorer | None:
        return mean_query(self.graph, marker, query, length, self._angles)

    def inputs(self, states: PromptStates) -> list[gs.Tensor]:
        return []


class CalibratedSurgery(MethodSurgery):
    """Traces hold the measured queries."""

    voting = CalibratedVoting

    def stamp(self, options: GraphOptions, traced: onnx.ModelProto) -> None:
        if path := options.of(CalibratedOptions).mean_queries:
            stamp(traced, MeanQueries.read(path).layers)


SURGERY = CalibratedSurgery()
