"""The table of the kinds of graphs that a build can have.

The manifest, its interface, builder and runtime ask these records. `graphs/kinds.py` has the
surgery of each, by the same names. To add a kind, add a record to both tables.

    prefill        one chunk of a prompt, into a cache of full length; prefill.N of N positions,
                   prefill.cM in chunks of M tokens, prefill.N.cM both
    prefill-sparse the same amid a prompt that is longer than --prefill-budget
    compress       from a prompt's full-length cache to its compressed one
    vote           votes of a repeated chunk
    extend         one more chunk onto a compressed cache; extend.cM of M tokens
    decode         one token of each batch slot; decode.N for the first N batch slots
    verify         several tokens of each batch slot: a token and drafts of the next
    mtp            a step of multi-token prediction, which drafts
    mtp-prefill    the same for a chunk of a prompt
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.graph_options import GraphOptions
from snapexport.contract.graph_specs import GraphFacts, Specs, Tensors

BASELINE = "baseline-"
"""Prefix of the names of the full cache's graphs."""

VERIFY, MTP, MTP_PREFILL = "verify", "mtp", "mtp-prefill"
PREFILL_SPARSE = "prefill-sparse"

BuiltIf = Callable[[CacheGeometry, GraphOptions, int], bool]
"""Whether a build has the graph, by its geometry, graph options and prefill chunk (tokens)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What an executor does with a build.

    takes_prompts, generates: of the two halves of a request, those that are done here.
    chunks: whether prompts go into a cache of full length. blocks: onto the compressed cache.
    full_cache: whether no cache is compressed. drafts: whether graphs may draft tokens.
    """

    geometry: CacheGeometry
    takes_prompts: bool = True
    generates: bool = True
    chunks: bool = True
    blocks: bool = False
    full_cache: bool = False
    drafts: bool = True

    @property
    def compresses(self) -> bool:
        """Whether a prompt's cache of full length is compressed."""
        return self.takes_prompts and self.chunks and not self.full_cache

    @property
    def decodes(self) -> bool:
        """Whether decode runs. Pseudo tokens are decoded while a prompt is prefilled."""
        return self.generates or (not self.full_cache and self.geometry.pseudo_tokens > 0)


@dataclass(frozen=True, kw_only=True)
class GraphKind:
    """One kind of graph.

    specs: inputs but weights, and outputs, by a graph's facts. optional: outputs that may be
        missing.
    loaded_if: whether an executor loads the graph, where the build has it.
    traced_as: the trace that it is made from; "": of its own name.
    rows: what the rows of its inputs are: of one prompt, or the batch slots.
    sized_by: what NAME.N has N of; "": there is only one size.
    shortens: whether --short-chunks adds the same graph for chunks of fewer tokens.
    has_baseline: whether --baseline adds the same graph for the full cache.
    writes_in_place: whether its `present.*` have to share the buffers of `past_key_values.*`.
    has_weights: whether it runs layers of the model.
    """

    name: str
    specs: Callable[[GraphFacts], Tensors]
    optional: Callable[[GraphFacts], Specs] = lambda facts: {}
    built_if: BuiltIf = lambda geometry, options, chunk: True
    loaded_if: Callable[[Run], bool] = lambda run: False
    traced_as: str = ""
    rows: Literal["prompt", "batch"] = "prompt"
    sized_by: Literal["", "batch", "capacity"] = ""
    shortens: bool = False
    has_baseline: bool = False
    writes_in_place: bool = True
    has_weights: bool = True

    @property
    def trace(self) -> str:
        """The name of the trace that it is made from."""
        return self.traced_as or self.name


def _compresses_apart(geometry: CacheGeometry, options: GraphOptions, chunk: int) -> bool:
    return geometry.compresses and not geometry.is_single_shot(chunk)


_TABLE = (
    GraphKind(
        name="prefill",
        specs=GraphFacts.prefill,
        loaded_if=lambda run: run.takes_prompts and run.chunks,
        sized_by="capacity",
        shortens=True,
        has_baseline=True,
    ),
    GraphKind(
        name=PREFILL_SPARSE,
        specs=GraphFacts.prefill_sparse,
        built_if=lambda geometry, options, chunk: options.prefill_budget > 0,
        loaded_if=lambda run: run.takes_prompts and run.chunks,
        traced_as="prefill",
    ),
    GraphKind(
        name="decode",
        specs=GraphFacts.decode,
        optional=GraphFacts.queries,
        loaded_if=lambda run: run.decodes,
        rows="batch",
        sized_by="batch",
        has_baseline=True,
    ),
    GraphKind(
        name=VERIFY,
        specs=GraphFacts.verify,
        built_if=lambda geometry, options, chunk: geometry.steps.several,
        loaded_if=lambda run: run.generates,
        rows="batch",
        sized_by="batch",
    ),
    GraphKind(
        name="compress",
        specs=GraphFacts.compress,
        built_if=_compresses_apart,
        loaded_if=lambda run: run.compresses,
        traced_as="prefill",
        writes_in_place=False,  # input and output caches differ in length
        has_weights=False,
    ),
    GraphKind(
        name="vote",
        specs=GraphFacts.vote,
        built_if=lambda geometry, options, chunk: geometry.voters == "repeat",
        loaded_if=lambda run: run.compresses,
        traced_as="prefill",
        has_weights=False,
    ),
    GraphKind(
        name="extend",
        specs=GraphFacts.extend,
        built_if=lambda geometry, options, chunk: options.extend,
        loaded_if=lambda run: run.takes_prompts and run.blocks,
        traced_as="prefill",
        shortens=True,
        writes_in_place=False,  # it moves what it keeps to other cache slots
    ),
    GraphKind(
        name=MTP,
        specs=GraphFacts.mtp,
        built_if=lambda geometry, options, chunk: options.mtp,
        loaded_if=lambda run: run.generates and run.drafts,
        rows="batch",
    ),
    GraphKind(
        name=MTP_PREFILL,
        specs=GraphFacts.mtp_prefill,
        built_if=lambda geometry, options, chunk: options.mtp,
        loaded_if=lambda run: run.generates and run.drafts,
        writes_in_place=False,  # it reads its input while it writes
    ),
)
GRAPH_KINDS: dict[str, GraphKind] = {kind.name: kind for kind in _TABLE}


@dataclass(frozen=True, slots=True)
class GraphOf:
    """What a graph's name says. size: the N of NAME.N; tokens: the M of NAME.cM; 0: the whole."""

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
    kind = GRAPH_KINDS.get(stem)
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
    return {name: kind for name, kind in GRAPH_KINDS.items() if kind.built_if(*wanted)}
