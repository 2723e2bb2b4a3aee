"""What turns the traces of a model into the graphs of one build."""

from dataclasses import dataclass, replace

from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.graph_options import GraphOptions
from snapexport.contract.targets import Target


@dataclass(frozen=True)
class Recipe:
    """options: resolved. with_queries: decode outputs its queries, query.{l} [B,H,1,D].
    before_rope: query windows have queries before RoPE, to be measured."""

    geometry: CacheGeometry
    target: Target
    options: GraphOptions = GraphOptions()  # noqa: RUF009 (it is frozen)
    with_queries: bool = False
    before_rope: bool = False

    def of_full_cache(self) -> "Recipe":
        """The same without compression."""
        return replace(self, geometry=self.geometry.as_full(), options=self.options.of_full_cache())
