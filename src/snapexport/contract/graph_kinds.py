"""The table of the kinds of graphs that a build can have: the common ones, and the methods' own.

The manifest, its interface, builder and runtime ask these records. `graphs/kinds.py` has the
surgery of each, by the same names.

    prefill        one chunk of a prompt, into a cache of full length; prefill.N of N positions,
                   prefill.cM in chunks of M tokens, prefill.N.cM both
    compress       from a prompt's full-length cache to its compressed one
    decode         one token of each batch slot; decode.N for the first N batch slots
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.graph_kind import GraphKind
from snapexport.contract.graph_options import GraphOptions
from snapexport.contract.graph_specs import GraphFacts, Tensors
from snapexport.methods import table
from snapexport.methods.method import Method

BASELINE = "baseline-"
"""Prefix of the names of the full cache's graphs."""


def _compresses_apart(geometry: CacheGeometry, options: GraphOptions, chunk: int) -> bool:
    return geometry.compresses and not geometry.is_single_shot(chunk)


COMMON = (
    GraphKind(
        name="prefill",
        specs=GraphFacts.prefill,
        loaded_if=lambda run: run.takes_prompts and run.chunks,
        sized_by="capacity",
        shortens=True,
        has_baseline=True,
        owns_caches=True,
    ),
    GraphKind(
        name="decode",
        specs=GraphFacts.decode,
        optional=GraphFacts.queries,
        loaded_if=lambda run: run.decodes,
        rows="batch",
        sized_by="batch",
        has_baseline=True,
        owns_caches=True,
    ),
    GraphKind(
        name="compress",
        specs=GraphFacts.compress,
        built_if=_compresses_apart,
        loaded_if=lambda run: run.compresses,
        traced_as="prefill",
        writes_in_place=False,  # input and output caches differ in length
        counts_votes=True,
        has_weights=False,
    ),
)


def graph_kinds() -> Mapping[str, GraphKind]:
    """Every kind of graph, by name."""
    return _kinds(table.METHODS)


@cache
def _kinds(methods: tuple[Method, ...]) -> Mapping[str, GraphKind]:
    kinds = (*COMMON, *(kind for method in methods for kind in method.kinds))
    return {kind.name: kind for kind in kinds}


def tensors(kind: GraphKind, facts: GraphFacts) -> Tensors:
    """All inputs but weights, and all outputs, of a graph."""
    common = kind.specs(facts)
    inputs, outputs = dict(common[0]), dict(common[1])
    for method in table.methods_on(facts.geometry, facts.options):
        more_inputs, more_outputs = method.tensors(facts, kind.name, common)
        inputs |= more_inputs
        outputs |= more_outputs
    return inputs, outputs


@dataclass(frozen=True, slots=True)
class GraphOf:
    """The parts of a graph's name. size: N of NAME.N; tokens: M of NAME.cM; 0: the whole."""

    kind: GraphKind
    size: int = 0
    tokens: int = 0
    is_baseline: bool = False

    @property
    def name(self) -> str:
        """NAME, with what it says."""
        size, tokens = f".{self.size}" * bool(self.size), f".c{self.tokens}" * bool(self.tokens)
        return f"{BASELINE * self.is_baseline}{self.kind.name}{size}{tokens}"


_NAME = re.compile(rf"({BASELINE})?([a-z-]+)(?:\.([1-9][0-9]*))?(?:\.c([1-9][0-9]*))?", re.ASCII)


def graph_of(name: str) -> GraphOf:
    """The kind and the size of a graph of that name. Raises ValueError."""
    found = _NAME.fullmatch(name)
    prefix, stem, size, tokens = found.groups() if found else (None, "", None, None)
    kind = graph_kinds().get(stem)
    if not kind or (size and not kind.sized_by) or (tokens and not kind.shortens):
        raise ValueError(f"{name!r:.100} names no graph")
    if prefix and (tokens or not kind.has_baseline):
        raise ValueError(f"{name!r:.100} names no graph of the full cache")
    return GraphOf(kind, int(size or 0), int(tokens or 0), bool(prefix))


def require_graph_name(name: str) -> str:
    """Return the name of a graph. Raises ValueError for another name."""
    graph_of(name)
    return name


def kinds_of(
    geometry: CacheGeometry, options: GraphOptions, prefill_chunk: int
) -> Mapping[str, GraphKind]:
    """The kinds of graphs that a build has, by name."""
    wanted = (geometry, options, prefill_chunk)
    return {name: kind for name, kind in graph_kinds().items() if kind.built_if(*wanted)}
