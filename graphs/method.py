"""Defines a build's recipe for graphs, and the base of every `methods/*/surgery.py`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import onnx
import onnx_graphsurgeon as gs

from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.graph_options import GraphOptions
from snapexport.contract.names import HIDDEN_STATES
from snapexport.contract.targets import Target
from snapexport.graphs.compression import Voting
from snapexport.graphs.passes.base import Pass
from snapexport.graphs.passes.decode import Places
from snapexport.graphs.passes.storage import Storage
from snapexport.methods import table

Shown = Callable[[gs.Tensor], gs.Tensor]


@dataclass(frozen=True)
class Recipe:
    """options: resolved. with_queries: decode outputs its queries, query.{l} [B,H,1,D].
    shown: what query windows show of a marker's queries, to be measured; None: the queries."""

    geometry: CacheGeometry
    target: Target
    options: GraphOptions = GraphOptions()  # noqa: RUF009 (it is frozen)
    with_queries: bool = False
    shown: Shown | None = None

    def of_full_cache(self) -> "Recipe":
        """The same without compression."""
        return replace(self, geometry=self.geometry.as_full(), options=self.options.of_full_cache())


@dataclass(frozen=True, slots=True)
class Size:
    """tokens: of a row of the trace. capacity: positions of a full-length cache."""

    tokens: int
    capacity: int


def of_trace(traced: gs.Graph, recipe: Recipe) -> gs.Graph:
    """A trace, without the hidden states where no graph takes them: a build may derive others."""
    methods = table.methods_on(recipe.geometry, recipe.options)
    if not any(method.reads_hidden_states for method in methods):
        traced.outputs = [output for output in traced.outputs if output.name != HIDDEN_STATES]
    return traced


@dataclass(frozen=True, slots=True)
class GraphSurgery:
    """How one kind of graph is made.

    caches: the passes that give it its caches, in order. start: the graph that they change, of an
    imported trace. is_traced: whether the passes of methods follow, before and after the caches.
    absorbs: whether latent attention is always absorbed.
    """

    caches: Callable[[Recipe, Size], Sequence[Pass]]
    start: Callable[[gs.Graph, Recipe], gs.Graph] = of_trace
    is_traced: bool = True
    absorbs: bool = False


class MethodSurgery:
    """Defines what a cache method does in surgery: nothing, where it overrides nothing."""

    kinds: ClassVar[Mapping[str, GraphSurgery]] = {}
    """How its own kinds of graphs are made, by name."""

    voting: type[Voting] | None = None
    """What decides on the kept positions, where the method is about who votes."""

    storage: Storage | None = None
    """How compressed caches are stored."""

    places: Places | None = None
    """Where decode writes, for each shape of layers; None: as the position says."""

    stamped: str | None = "prefill"
    """The kind of traces that `stamp` is called for; None: all."""

    def stamp(self, options: GraphOptions, traced: onnx.ModelProto) -> None:
        """Write into a trace what graphs of other caches can be made of too."""

    def before_caches(self, kind: str, recipe: Recipe, size: Size) -> Sequence[Pass]:
        """Passes before those that give a graph of a kind its caches."""
        return ()

    def after_caches(self, kind: str, recipe: Recipe, size: Size) -> Sequence[Pass]:
        """Passes after those."""
        return ()


def surgeries(recipe: Recipe) -> list[MethodSurgery]:
    """The surgery of each method of a recipe, in the table's order."""
    methods = table.methods_on(recipe.geometry, recipe.options)
    return [found for method in methods if (found := method.part("surgery"))]


def voting(recipe: Recipe, graph: gs.Graph, tokens: int) -> Voting:
    """The vote in a graph of compression. tokens: of the trace's chunk."""
    found = next(one.voting for one in surgeries(recipe) if one.voting)
    return found(graph, recipe.geometry, recipe.options, tokens)
