"""The table of how surgery makes each kind of graph: the graph it starts from, and its passes.

What a kind is called, takes and gives is in `contract/graph_kinds.py`, by the same names. A cache
method brings its own kinds, and passes before and after those that give a graph its caches.
"""

from collections.abc import Mapping, Sequence

import onnx_graphsurgeon as gs

from snapexport.graphs.compress import compress_graph
from snapexport.graphs.method import surgeries
from snapexport.graphs.passes.base import Pass
from snapexport.graphs.passes.batch_parallel import BatchParallel
from snapexport.graphs.passes.decode_cache import DecodeCache
from snapexport.graphs.passes.decode_queries import DecodeQueries
from snapexport.graphs.passes.latents import Latents
from snapexport.graphs.passes.prefill_cache import PrefillCache
from snapexport.graphs.passes.single_shot import SingleShot
from snapexport.graphs.recipe import GraphSurgery, Recipe, Size


def _prefill(recipe: Recipe, size: Size) -> Sequence[Pass]:
    if recipe.geometry.is_single_shot(size.tokens):
        return (SingleShot(recipe.geometry, recipe.options),)
    options = recipe.options.of_prompt_cache()
    return (PrefillCache(recipe.geometry.slots, size.capacity, options),)


def decode_caches(recipe: Recipe, size: Size) -> Sequence[Pass]:
    """The passes that give decode its caches."""
    own = (method.places for method in surgeries(recipe) if method.places)
    passes: list[Pass] = [DecodeCache(recipe.geometry, recipe.options, next(own, None))]
    return [*passes, DecodeQueries()] if recipe.with_queries else passes


def _compress_step(prefill: gs.Graph, recipe: Recipe) -> gs.Graph:
    """Prefill's trace is only read for its shapes."""
    Latents(absorb=True).apply(prefill)
    return compress_graph(prefill, recipe)


COMMON: Mapping[str, GraphSurgery] = {
    "prefill": GraphSurgery(_prefill),
    "decode": GraphSurgery(decode_caches),
    "compress": GraphSurgery(lambda recipe, size: (), _compress_step, is_traced=False),
}


def surgery_of(kind: str, recipe: Recipe) -> GraphSurgery:
    """How a kind of graph is made."""
    own = (method.kinds[kind] for method in surgeries(recipe) if kind in method.kinds)
    return COMMON.get(kind) or next(own)


def passes(kind: str, recipe: Recipe, size: Size) -> list[Pass]:
    """The passes of a kind, in order; the target's follow."""
    surgery, methods = surgery_of(kind, recipe), surgeries(recipe)
    caches = surgery.caches(recipe, size)
    if not surgery.is_traced:
        return [*caches]
    shared = kind == "decode" and recipe.options.data_parallel_attention
    found: list[Pass] = [BatchParallel()] if shared else []
    found.append(Latents(absorb=surgery.absorbs))
    for method in methods:
        found += method.before_caches(kind, recipe, size)
    found += caches
    for method in methods:
        found += method.after_caches(kind, recipe, size)
    return found
