"""Computes learned scores in prefill, and keeps the positions that have the highest ones.

LinearScores, GeluScores: the scores of a chunk's positions, by one layer or two.

states [1,C,E], weight float32 [E,n], bias float32 [n], and for two layers again [n,Hkv] and [Hkv]
    -> scores float32 [1,Hkv,C].

Each chunk writes its scores into `votes.{l}` [1,Hkv,T], where its keys and values are. A score is
the logarithm of an expected attention; SelectVoted takes what is not negative, so its exponential.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from numpy.typing import NDArray
from onnx import numpy_helper

from snapexport.contract import names
from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.graph_kinds import graph_kinds
from snapexport.contract.graph_options import GraphOptions
from snapexport.contract.slots import LayerGeometry, Slots
from snapexport.contract.targets import capabilities
from snapexport.errors import UserError
from snapexport.graphs.compression import (
    PromptStates,
    Scorer,
    Scores,
    Voting,
    caching_layers,
    choose,
    column,
)
from snapexport.graphs.functions import Function
from snapexport.graphs.markers import (
    ATTENTION,
    BLOCK_MATMUL,
    CACHE_ATTENTION,
    CACHE_DOMAIN,
    LATENT_ATTENTION,
    TRACE_DOMAIN,
)
from snapexport.graphs.method import MethodSurgery, Recipe, Size
from snapexport.graphs.passes.base import (
    Pass,
    call,
    computed_range,
    fresh,
    graph_input,
    int64s,
    markers,
    node,
    written,
)
from snapexport.graphs.passes.cache import cache_like, of_heads
from snapexport.graphs.passes.storage import cast
from snapexport.methods.learned.scores import LearnedScores, Network
from snapexport.methods.learned.spec import BOTH, LearnedOptions, cached_votes, extends

_NETWORK = """
<domain: "snapexport", opset_import: ["": 24]>
%(name)s (states, %(inputs)s) => (scores)
{
  taken = Cast <to = 1> (states)
%(layers)s
  scores = Transpose <perm = [0, 2, 1]> (last)
}
"""
_LINEAR = """  product = MatMul (taken, weight)
  last = Add (product, bias)"""
_TWO_LAYERS = """  product = MatMul (taken, weight)
  inner = Add (product, bias)
  bent = Gelu (inner)
  further = MatMul (bent, weight2)
  last = Add (further, bias2)"""

_FIRST = 1e30
"""The vote of what the window chose, above every score's."""
_HIGHEST = 60.0
"""Scores are logarithms of attention, below 0; a higher one would have a vote above `_FIRST`."""


def scores_function(layers: int) -> Function:
    """layers: 1 or 2."""
    inputs = ("weight, bias", "weight, bias, weight2, bias2")[layers - 1]
    name, body = (("LinearScores", _LINEAR), ("GeluScores", _TWO_LAYERS))[layers - 1]
    return Function(name, _NETWORK % {"name": name, "inputs": inputs, "layers": body})


def stamp(traced: onnx.ModelProto, learned: LearnedScores) -> None:
    """Write each layer's network into a trace's markers."""
    for marker in traced.graph.node:
        if marker.domain == TRACE_DOMAIN and marker.op_type in (ATTENTION, LATENT_ATTENTION):
            index = next(one.i for one in marker.attribute if one.name == "layer")
            for name, array in zip(_PARTS, _arrays(learned.layers.get(index, ())), strict=False):
                made = onnx.helper.make_attribute(name, numpy_helper.from_array(array, name))
                marker.attribute.append(made)


_PARTS = "score_weight", "score_bias", "score_weight2", "score_bias2"


def _arrays(network: Network) -> Iterator[NDArray[np.float32]]:
    for linear in network:
        yield np.ascontiguousarray(linear.weight.T)
        yield linear.bias


def projection_input(marker: gs.Node) -> gs.Tensor:
    """Find what the keys and values of an attention marker are projected from, [1,C,E].

    Found from the values, which no RoPE rotates, or from latents. Raises UserError.
    """
    found = dict[int, gs.Tensor]()
    waiting = [marker.inputs[1 if marker.attrs["latent"] else 2]]
    while waiting:
        for made_by in waiting.pop().inputs:
            given = [one for one in made_by.inputs if one.name and not _is_constant(one)]
            if made_by.op in _PRODUCTS and len(given) == 1:
                found[id(given[0])] = given[0]
            else:
                waiting += given
    if len(found) != 1:
        raise UserError(
            f"learned scores are not supported for this model: the values of layer "
            f"{marker.attrs['layer']} come from {len(found)} projections",
            "use the queries of prompts: --vote-queries prompt",
        )
    return next(iter(found.values()))


_PRODUCTS = "MatMul", "Gemm", BLOCK_MATMUL


def _is_constant(tensor: gs.Tensor) -> bool:
    """Whether it is a weight, stored, transposed or dequantized, or another constant."""
    if isinstance(tensor, gs.Constant):
        return True
    return bool(tensor.inputs) and all(map(_is_constant, tensor.inputs[0].inputs))


def scores_of(graph: gs.Graph, marker: gs.Node, slots: Slots) -> gs.Variable:
    """The learned scores of a marker's rows, float32 [B,Hkv,C]. Raises UserError.

    slots: the caches, of which a marker may have one's heads.
    """
    arrays = [marker.attrs[name].values for name in _PARTS if name in marker.attrs]
    if not arrays:
        raise UserError(
            "these graphs hold no learned scores",
            "build it again with --vote-queries learned and --scores FILE",
        )
    states, (batch, kv_heads, rows, _) = projection_input(marker), marker.inputs[1].shape
    width = arrays[0].shape[0]
    if states.shape[-1] != width:
        raise UserError(
            f"layer {marker.attrs['layer']} has learned scores of {width} numbers, and states of "
            f"{states.shape[-1]}",
            "use scores of this model",
        )
    if kv_heads < len(arrays[-1]):
        own = next(one for one in slots.caches if one.cache == marker.attrs["layer"])
        arrays[-2:] = [array[..., [*(own.heads or ())]] for array in arrays[-2:]]
    if len(states.shape) != 3:
        (states,) = node(graph, "Reshape", [states, int64s(graph, batch, rows, width)])
    inputs = [gs.Constant(fresh(graph, "score"), array) for array in arrays]
    scores = gs.Variable(fresh(graph, "scores"), np.float32, (batch, kv_heads, rows))
    call(graph, scores_function(len(inputs) // 2), [states, *inputs], [scores])
    return scores


@dataclass(frozen=True)
class WriteScores:
    """Adds votes.{l} [1,Hkv,T] to a chunk's inputs and outputs; its scores are written into it.

    Runs before PrefillCache. positions: T.
    """

    geometry: CacheGeometry
    positions: int

    def apply(self, graph: gs.Graph) -> None:
        voting = {layer for layer, shape in self.geometry.widest.items() if shape.K}
        place: _Place | None = None
        for layer, marker in caching_layers(graph, self.geometry):
            if layer not in voting:
                continue
            scores = scores_of(graph, marker, self.geometry.slots)
            _, kv_heads, rows = scores.shape
            place = place or _Place(graph, rows, self.positions)
            shape = (1, kv_heads, self.positions)
            past = gs.Variable(names.past_votes(layer), np.float32, shape)
            votes = gs.Variable(names.votes(layer), np.float32, shape)
            place.write(past, scores, votes)
            graph.inputs.append(past)
            graph.outputs.append(votes)


class _Place:
    """Where a chunk of C tokens is in [0, T), for all layers."""

    def __init__(self, graph: gs.Graph, tokens: int, positions: int) -> None:
        self._graph = graph
        before = graph_input(graph, names.PAST_LENGTH)
        (index,) = node(graph, "Sub", [computed_range(graph, 0, positions), before])
        first, last = int64s(graph, 0), int64s(graph, tokens - 1)
        after_start = node(graph, "GreaterOrEqual", [index, first])
        before_end = node(graph, "LessOrEqual", [index, last])
        (self._is_new,) = node(graph, "And", [*after_start, *before_end])
        (self._row,) = node(graph, "Min", [*node(graph, "Max", [index, first]), last])

    def write(self, past: gs.Variable, scores: gs.Tensor, votes: gs.Variable) -> None:
        """votes: `past` [1,Hkv,T] with the chunk's scores [1,Hkv,C]."""
        spread = node(self._graph, "Gather", [scores, self._row], axis=2)
        node(self._graph, "Where", [self._is_new, *spread, past], [votes])


@dataclass(frozen=True)
class ShowScores:
    """Makes the scores of a step's tokens outputs of decode, for KeepScores. Runs before caches."""

    geometry: CacheGeometry

    def apply(self, graph: gs.Graph) -> None:
        for layer, marker in caching_layers(graph, self.geometry):
            if layer in self.geometry.widest and self.geometry.widest[layer].K:
                scores = scores_of(graph, marker, self.geometry.slots)
                scores.name = _shown(layer)
                graph.outputs.append(scores)


_shown = names.numbered("scores.")


@dataclass(frozen=True)
class KeepScores:
    """Writes them into caches [B,Hkv,S,1], where the tokens' keys are. Runs after caches.

    Without scores, a channel of the key is written: our runtime goes on from a prompt's end, and
    feeds an answer again. TensorRT for RTX 1.7 ends while it compiles a decode step with scores.
    """

    geometry: CacheGeometry

    def apply(self, graph: gs.Graph) -> None:
        shown = {one.name: one for one in graph.outputs}
        writers = dict(markers(graph, CACHE_DOMAIN, CACHE_ATTENTION))
        for own in self.geometry.slots.caches:
            shape = self.geometry.shapes[own.cache]
            if not shape.K or own.cache not in writers:
                continue
            _, key, *_, slot = writers[own.cache].inputs[:6]
            scores = shown.get(_shown(own.layer))
            if scores is None:
                rows = _channel(graph, key)
            else:
                part = scores if own.heads is None else of_heads(graph, scores, own.heads)
                rows = column(graph, part)
            past = cache_like(rows, cached_votes(own.cache), shape.cache_slots)
            present = cache_like(rows, names.present_of(past.name), shape.cache_slots)
            written(graph, [past], [rows], slot, [present])
            graph.inputs.append(past)
            graph.outputs.append(present)
        inner = {_shown(own.layer) for own in self.geometry.slots.caches}
        graph.outputs = [one for one in graph.outputs if one.name not in inner]


def _channel(graph: gs.Graph, key: gs.Tensor) -> gs.Variable:
    """The first channel of a key [B,Hkv,C,D], float32 [B,Hkv,C,1]."""
    channel = gs.Variable(fresh(graph, "channel"), key.dtype, (*key.shape[:3], 1))
    node(graph, "Slice", [key, *(int64s(graph, n) for n in (0, 1, 3))], [channel])
    return cast(graph, channel, np.float32)


@dataclass(frozen=True)
class Learned:
    """Votes by learned scores [1,Hkv,T]."""

    given: gs.Tensor
    kept_as: names.OfNumber | None
    is_pooled = True

    def of_entries(self, given: gs.Tensor) -> "Learned":
        return replace(self, given=given)

    def of(self, graph: gs.Graph, heads: Sequence[int], queries: Sequence[int]) -> "Learned":
        return replace(self, given=of_heads(graph, self.given, heads))

    def votes(self, graph: gs.Graph, states: PromptStates, layout: LayerGeometry) -> gs.Tensor:
        highest = gs.Constant(fresh(graph, "highest"), np.array(_HIGHEST, np.float32))
        votes = gs.Variable(fresh(graph, "votes"), np.float32, self.given.shape)
        return node(graph, "Exp", node(graph, "Min", [self.given, highest]), [votes])[0]


@dataclass(frozen=True)
class HalfLearned(Learned):
    """The window's vote chooses half of the positions before. scores: of its queries."""

    geometry: CacheGeometry
    scores: Scores
    is_pooled = False  # the window's own vote is

    def votes(self, graph: gs.Graph, states: PromptStates, layout: LayerGeometry) -> gs.Tensor:
        votes, half = super().votes(graph, states, layout), layout.K // 2
        if not half:
            return votes
        of_window = replace(states, scorer=None)
        own, name = replace(layout, K=half), fresh(graph, "chosen")
        chosen = choose(graph, self.geometry.vote, own, self.scores, of_window, name)
        # Nothing is chosen only of a prompt that is kept whole.
        (places,) = node(graph, "Max", [chosen, int64s(graph, 0)])
        first = gs.Constant(fresh(graph, "first"), np.full(chosen.shape, _FIRST, np.float32))
        voted = gs.Variable(fresh(graph, "votes"), np.float32, votes.shape)
        return node(graph, "ScatterElements", [votes, places, first], [voted], axis=2)[0]


class LearnedVoting(Voting):
    """Learned scores decide, for `both` after the window."""

    def scorer(
        self, layer: int, marker: gs.Node, query: gs.Tensor, length: gs.Tensor
    ) -> Scorer | None:
        is_own = any(one is marker for one in self.graph.nodes)  # of a single shot, or extend
        if is_own:
            given = scores_of(self.graph, marker, self.geometry.slots)
        else:
            shape = (1, marker.inputs[1].shape[1], self.geometry.L_max)
            given = gs.Variable(names.votes(layer), np.float32, shape)
        kept_as = cached_votes if extends(self.options) else None
        if self.geometry.voter == BOTH:
            return HalfLearned(given, kept_as, self.geometry, Scores.of(marker))
        return Learned(given, kept_as)

    def inputs(self, states: PromptStates) -> list[gs.Tensor]:
        given = [states.scorer.given] if isinstance(states.scorer, Learned) else []
        return [*given, states.query_window] if self.geometry.voter == BOTH else given


class LearnedSurgery(MethodSurgery):
    """Traces hold the networks."""

    voting = LearnedVoting
    stamped = None

    def stamp(self, options: GraphOptions, traced: onnx.ModelProto) -> None:
        if path := options.of(LearnedOptions).scores:
            stamp(traced, LearnedScores.read(path))

    def before_caches(self, kind: str, recipe: Recipe, size: Size) -> Sequence[Pass]:
        by, geometry = graph_kinds()[kind], recipe.geometry
        if by.rows == "batch":
            shows = extends(recipe.options) and not capabilities(recipe.target).runs_on_gpu
            return (ShowScores(geometry),) if shows else ()
        if by.extends_rows or geometry.is_single_shot(size.tokens):
            return ()
        return (WriteScores(geometry, size.capacity),)

    def after_caches(self, kind: str, recipe: Recipe, size: Size) -> Sequence[Pass]:
        is_step = graph_kinds()[kind].rows == "batch" and extends(recipe.options)
        return (KeepScores(recipe.geometry),) if is_step else ()


SURGERY = LearnedSurgery()
