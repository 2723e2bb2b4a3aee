"""Outputs the window of queries that vote, in each chunk of prefill."""

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from snapexport.contract import names
from snapexport.graphs.compression import Voting
from snapexport.graphs.markers import CACHE_ATTENTION, CACHE_DOMAIN
from snapexport.graphs.method import MethodSurgery, Recipe, Shown, Size
from snapexport.graphs.passes.base import Pass, graph_input, has_cache, markers
from snapexport.graphs.passes.prefill import query_window


@dataclass(frozen=True)
class QueryWindows:
    """Adds query_window.{l} [1,H,W,D], the queries that vote, to a chunk's outputs.

    Runs after PrefillCache. A layer that reads another's cache has no vote. shown: what of the
    queries is output, to be measured; None: the queries.
    """

    L_obs: int
    shown: Shown | None = None

    def apply(self, graph: gs.Graph) -> None:
        chunk_length = graph_input(graph, names.CHUNK_LENGTH)
        for layer, marker in markers(graph, CACHE_DOMAIN, CACHE_ATTENTION):
            if has_cache(graph, layer):
                query = self.shown(marker.inputs[0]) if self.shown else None
                window = query_window(graph, layer, marker, chunk_length, self.L_obs, query)
                graph.outputs.append(window)


class WindowVote(MethodSurgery):
    """The compress step takes the window of the last chunk."""

    voting: type[Voting] | None = Voting

    def after_caches(self, kind: str, recipe: Recipe, size: Size) -> Sequence[Pass]:
        if kind != "prefill" or recipe.geometry.is_single_shot(size.tokens):
            return ()
        return (QueryWindows(recipe.geometry.vote.L_obs, recipe.shown),)


SURGERY = WindowVote()
