"""Defines what a cache method does in surgery: the base of every `methods/*/surgery.py`."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import onnx
import onnx_graphsurgeon as gs

from snapexport.contract.graph_options import GraphOptions
from snapexport.graphs.compression import Voting
from snapexport.graphs.passes.base import Pass
from snapexport.graphs.passes.decode_cache import Places
from snapexport.graphs.passes.storage import Storage
from snapexport.graphs.recipe import GraphSurgery, Recipe, Size
from snapexport.methods import table


class MethodSurgery:
    """Changes nothing. A method overrides what it does."""

    kinds: ClassVar[Mapping[str, GraphSurgery]] = {}
    """How its own kinds of graphs are made, by name."""

    voting: type[Voting] | None = None
    """What decides on the kept positions, where the method is about who votes."""

    storage: Storage | None = None
    """How compressed caches are stored."""

    places: Places | None = None
    """Where decode writes, for each shape of layers; None: as the position says."""

    def stamp(self, options: GraphOptions, traced: onnx.ModelProto) -> None:
        """Write into a trace of prefill what graphs of other caches can be made of too."""

    def before_caches(self, kind: str, recipe: Recipe, size: Size) -> Sequence[Pass]:
        """Passes before those that give a graph of a kind its caches."""
        return ()

    def after_caches(self, kind: str, recipe: Recipe, size: Size) -> Sequence[Pass]:
        """Passes after those."""
        return ()


def surgeries(recipe: Recipe) -> list[MethodSurgery]:
    """What each method of a recipe does, in the table's order."""
    methods = table.methods_on(recipe.geometry, recipe.options)
    return [found for method in methods if (found := method.part("surgery"))]


def voting(recipe: Recipe, graph: gs.Graph, tokens: int) -> Voting:
    """What votes in a graph of compression. tokens: of the trace's chunk."""
    found = next(one.voting for one in surgeries(recipe) if one.voting)
    return found(graph, recipe.geometry, tokens)
