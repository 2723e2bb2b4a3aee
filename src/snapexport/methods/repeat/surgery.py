"""Counts the votes of a repeated prompt, after KVzip (arXiv:2505.23416, Eq. 2).

The prompt is fed again after itself, a chunk at a time. A position is worth the largest attention
that any repeated token gives it: what the model needs in order to write the prompt once more. KVzip
does not pool.

RepetitionVotes: query_window [1,H,n,D], key [1,Hkv,T,D], prompt_length int64 [1]
    -> largest float32 [1,Hkv,T].
Attributes: first_row (int), scale and softcap (float, 0: none). Row i of the queries is at position
L + first_row + i, and attends to all positions up to its own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_graphsurgeon as gs

from snapexport.contract import names
from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.slots import LayerGeometry
from snapexport.graphs.compression import (
    PromptStates,
    Scorer,
    Scores,
    Voting,
    caching_layers,
    in_models_type,
    prompt_states,
    scored,
)
from snapexport.graphs.functions import Function
from snapexport.graphs.functions.vote import SCORES, scores_text
from snapexport.graphs.method import GraphSurgery, Recipe
from snapexport.graphs.passes.base import call, fresh, int64s, node
from snapexport.graphs.passes.cache import of_heads
from snapexport.graphs.passes.latents import Latents
from snapexport.methods.repeat.spec import GRAPH, VOTING_ROWS, present_votes
from snapexport.methods.window_vote.surgery import WindowVote

_VOTES = (
    """
<domain: "snapexport", opset_import: ["": 24]>
RepetitionVotes <first_row, scale, softcap> (query_window, key, prompt_length) => (largest)
{
  zero = Constant <value_int = 0> ()
  one = Constant <value_int = 1> ()
  window_axis = Constant <value_ints = [2]> ()
  no_vote = Constant <value_float = 0.0> ()
  T = Shape <start = 2, end = 3> (key)
"""
    + SCORES
    + """
  # Attention to all positions up to each query's own.
  length = Squeeze (T)
  position = Range (zero, length, one)
  window_size = Shape <start = 2, end = 3> (query_window)
  rows = Squeeze (window_size)
  row = Range (zero, rows, one)
  offset = Constant <value_int: int = @first_row> ()
  first_position = Add (prompt_length, offset)
  row_position = Add (first_position, row)
  row_column = Unsqueeze (row_position, rest)
  is_seen = LessOrEqual (position, row_column)
  bias = Where (is_seen, no_vote, lowest)
  masked = Add (scores, bias)
  attention = Softmax <axis = -1> (masked)
  # Of all rows, and of all query heads of a KV head.
  grouped_shape = Concat <axis = 0> (kv_heads, rest, T)
  grouped = Reshape (attention, grouped_shape)
  largest = ReduceMax <keepdims = 0> (grouped, window_axis)
}
"""
)


def repetition_votes(softcapped: bool) -> Function:
    """softcapped: whether the model caps its scores."""
    text = _VOTES % {"scores": scores_text(softcapped)}
    return Function("RepetitionVotes", text, votes=True)


@dataclass(frozen=True)
class Counted:
    """Votes that were counted before: an input of the compress step."""

    given: gs.Tensor
    is_pooled = True
    kept_as = None

    def of_entries(self, given: gs.Tensor) -> "Counted":
        return Counted(given)

    def of(self, graph: gs.Graph, heads: Sequence[int], queries: Sequence[int]) -> "Counted":
        return Counted(of_heads(graph, self.given, heads))

    def votes(self, graph: gs.Graph, states: PromptStates, layout: LayerGeometry) -> gs.Tensor:
        return self.given


class Repetition(Voting):
    """The compress step takes the votes of a repeated prompt, in the layers that have some."""

    def scorer(
        self, layer: int, marker: gs.Node, query: gs.Tensor, length: gs.Tensor
    ) -> Scorer | None:
        return Counted(_votes(layer, marker.inputs[1].shape[1], self.geometry))

    def inputs(self, states: PromptStates) -> list[gs.Tensor]:
        return [states.scorer.given] if isinstance(states.scorer, Counted) else []


def _votes(layer: int, kv_heads: int, geometry: CacheGeometry) -> gs.Variable:
    return gs.Variable(names.votes(layer), np.float32, (1, kv_heads, geometry.L_max))


def vote_graph(prefill: gs.Graph, recipe: Recipe) -> gs.Graph:
    """A chunk's votes in every layer that has some, of a traced prefill graph.

    The chunk was run at the prompt's end. Each vote is the larger one of those before and of the
    chunk's.
    """
    geometry, options = recipe.geometry, recipe.options
    prompt_length = gs.Variable(names.PROMPT_LENGTH, np.int64, (1,))
    graph = gs.Graph(name="vote", opset=prefill.opset, inputs=[prompt_length])
    for layer, marker in caching_layers(prefill, geometry):
        if geometry.shapes[layer].K:
            states = prompt_states(layer, marker, geometry, options, prompt_length, 1)
            before = _votes(layer, states.key.shape[1], geometry)
            read = [states.key, states.value] if states.latent else [states.key]
            graph.inputs.extend([*read, states.query_window, before])
            own = in_models_type(graph, marker, states)
            votes = _with_chunk(graph, Scores.of(marker), own, before)
            votes.name = present_votes(layer)
            graph.outputs.append(votes)
    return graph


def _with_chunk(
    graph: gs.Graph, scores: Scores, states: PromptStates, votes: gs.Variable
) -> gs.Variable:
    """The votes with those of a chunk, some rows of its queries after the other."""
    keys = scored(graph, states)
    function = repetition_votes(scores.softcap != 0)
    for first, rows in _blocks(graph, states.query_window):
        inputs, more = [rows, keys, states.prompt_length], [_like(graph, votes)]
        call(graph, function, inputs, more, first_row=first, **scores._asdict())
        (votes,) = node(graph, "Max", [votes, *more], [_like(graph, votes)])
    return votes


def _like(graph: gs.Graph, votes: gs.Tensor) -> gs.Variable:
    return gs.Variable(fresh(graph, "votes"), votes.dtype, votes.shape)


def _blocks(graph: gs.Graph, window: gs.Tensor) -> Iterator[tuple[int, gs.Tensor]]:
    """Up to VOTING_ROWS rows of the queries [1,H,W,D] at a time, with the first one's index."""
    batch, heads, count, head_dim = window.shape
    for first in range(0, count, VOTING_ROWS):
        end = min(first + VOTING_ROWS, count)
        shape = (batch, heads, end - first, head_dim)
        rows = gs.Variable(fresh(graph, "rows"), window.dtype, shape)
        node(graph, "Slice", [window, *(int64s(graph, n) for n in (first, end, 2))], [rows])
        yield first, rows


def _start(prefill: gs.Graph, recipe: Recipe) -> gs.Graph:
    """Prefill's trace is only read for its shapes."""
    Latents(absorb=True).apply(prefill)
    return vote_graph(prefill, recipe)


class RepeatSurgery(WindowVote):
    """Prefill shows the queries of whole chunks, and vote.onnx counts what they attend to."""

    kinds: ClassVar = {GRAPH: GraphSurgery(lambda recipe, size: (), _start, is_traced=False)}
    voting = Repetition


SURGERY = RepeatSurgery()
