"""Makes a chunk's attention take its KV heads in groups, for targets that copy the cache for it."""

from dataclasses import dataclass

import onnx_graphsurgeon as gs

from snapexport.graphs.markers import CACHE_ATTENTION, CACHE_DOMAIN
from snapexport.graphs.passes.base import markers


@dataclass(frozen=True)
class AttentionGroups:
    """Marks every attention to a cache. Runs after the pass that adds the caches."""

    groups: int

    def apply(self, graph: gs.Graph) -> None:
        for _, marker in markers(graph, CACHE_DOMAIN, CACHE_ATTENTION):
            marker.attrs["groups"] = self.groups
