"""The table of how surgery makes each kind of graph: the graph it starts from, and its passes.

What a kind is called, takes and gives is in `contract/graph_kinds.py`, by the same names.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import onnx_graphsurgeon as gs

from snapexport.contract.names import CHUNK_LENGTH, HIDDEN_STATES, PROMPT_LENGTH
from snapexport.graphs.compress import compress_graph, vote_graph
from snapexport.graphs.passes.base import Pass, graph_input
from snapexport.graphs.passes.batch_parallel import BatchParallel
from snapexport.graphs.passes.decode_cache import DecodeCache
from snapexport.graphs.passes.decode_queries import DecodeQueries
from snapexport.graphs.passes.draft_ring import DraftRing, FilledRing
from snapexport.graphs.passes.extend_cache import ExtendCache, taken_tokens
from snapexport.graphs.passes.head_groups import HeadGroups
from snapexport.graphs.passes.latents import Latents
from snapexport.graphs.passes.prefill_cache import PrefillCache, QueryWindows
from snapexport.graphs.passes.recurrent_states import RecurrentStates
from snapexport.graphs.passes.single_shot import SingleShot
from snapexport.graphs.passes.sparse_prefill import SparsePrefillCache
from snapexport.graphs.passes.top_tokens import TopTokens
from snapexport.graphs.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Size:
    """tokens: of a row of the trace. capacity: positions of a full-length cache."""

    tokens: int
    capacity: int


def _of_trace(traced: gs.Graph, recipe: Recipe) -> gs.Graph:
    """A trace, without the hidden states where no graph takes them: a build may derive others."""
    if not recipe.options.mtp:
        traced.outputs = [output for output in traced.outputs if output.name != HIDDEN_STATES]
    return traced


@dataclass(frozen=True, slots=True)
class GraphSurgery:
    """How one kind is made. passes: of the policy, in order; the target's follow.

    start: the graph that they change, of an imported trace.
    """

    passes: Callable[[Recipe, Size], Sequence[Pass]]
    start: Callable[[gs.Graph, Recipe], gs.Graph] = _of_trace


def _prefill(recipe: Recipe, size: Size) -> list[Pass]:
    geometry = recipe.geometry
    if geometry.is_single_shot(size.tokens):
        shot = SingleShot(geometry, recipe.options)
        states = RecurrentStates(partial(graph_input, name=PROMPT_LENGTH), begins=True)
        return [Latents(), shot, states, *_sampling(recipe)]
    voting = geometry.compresses and geometry.voters != "calibrated"
    windows = [QueryWindows(geometry.vote.L_obs, recipe.before_rope)] if voting else []
    options = recipe.options.of_prompt_cache()
    caches = PrefillCache(geometry.slots, size.capacity, options)
    states = RecurrentStates(partial(graph_input, name=CHUNK_LENGTH))
    return [Latents(), caches, *windows, states, *_sampling(recipe)]


def _prefill_sparse(recipe: Recipe, size: Size) -> list[Pass]:
    sparse = recipe.options.sparse_prefill(size.tokens)
    assert sparse, "the kind is built where there is a budget"
    options = recipe.options.of_prompt_cache()
    return [SparsePrefillCache(recipe.geometry.slots, size.capacity, options, sparse)]


def _extend(recipe: Recipe, size: Size) -> list[Pass]:
    extend = ExtendCache(recipe.geometry, recipe.options)
    geometry = recipe.geometry  # a short chunk may have as many voters as a whole one
    voters = geometry.vote.L_obs if geometry.votes else 0
    states = RecurrentStates(taken_tokens, voters=voters)
    return [Latents(), *_split(recipe), extend, states, *_sampling(recipe)]


def _decode(recipe: Recipe, size: Size) -> list[Pass]:
    passes: list[Pass] = [BatchParallel()] if recipe.options.data_parallel_attention else []
    passes += [Latents(), *_split(recipe), DecodeCache(recipe.geometry, recipe.options)]
    passes.append(RecurrentStates())
    passes += [DecodeQueries()] if recipe.with_queries else []
    return passes + _sampling(recipe)


def _mtp(recipe: Recipe, size: Size) -> list[Pass]:
    ring = DraftRing(recipe.geometry.draft_ring, recipe.options)
    return [Latents(), ring, *_sampling(recipe)]


def _mtp_prefill(recipe: Recipe, size: Size) -> list[Pass]:
    return [Latents(absorb=True), FilledRing(recipe.geometry.draft_ring, recipe.options)]


def _nothing(recipe: Recipe, size: Size) -> list[Pass]:
    return []


def _split(recipe: Recipe) -> list[Pass]:
    return [HeadGroups(recipe.geometry)] if recipe.geometry.slots.head_groups else []


def _sampling(recipe: Recipe) -> list[Pass]:
    return [TopTokens(recipe.options.top_tokens)] if recipe.options.top_tokens else []


def _compress_step(prefill: gs.Graph, recipe: Recipe) -> gs.Graph:
    """Prefill's trace is read for its shapes alone."""
    Latents(absorb=True).apply(prefill)
    return compress_graph(prefill, recipe.geometry, recipe.options)


def _vote_step(prefill: gs.Graph, recipe: Recipe) -> gs.Graph:
    Latents(absorb=True).apply(prefill)
    return vote_graph(prefill, recipe.geometry, recipe.options)


def _extend_step(prefill: gs.Graph, recipe: Recipe) -> gs.Graph:
    graph = _of_trace(prefill, recipe)
    graph.name = "extend"
    return graph


SURGERY: dict[str, GraphSurgery] = {
    "prefill": GraphSurgery(_prefill),
    "prefill-sparse": GraphSurgery(_prefill_sparse),
    "compress": GraphSurgery(_nothing, _compress_step),
    "vote": GraphSurgery(_nothing, _vote_step),
    "extend": GraphSurgery(_extend, _extend_step),
    "decode": GraphSurgery(_decode),
    "verify": GraphSurgery(_decode),
    "mtp": GraphSurgery(_mtp),
    "mtp-prefill": GraphSurgery(_mtp_prefill),
}
