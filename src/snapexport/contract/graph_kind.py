"""Defines a kind of graph: its tensors, when a build has it, and who loads it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.graph_options import GraphOptions
from snapexport.contract.graph_specs import GraphFacts, Specs, Tensors

Attended = Callable[[GraphOptions, int, int, int], int]
BuiltIf = Callable[[CacheGeometry, GraphOptions, int], bool]
"""Whether a build has the graph, by its geometry, graph options and prefill chunk (tokens)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Describes an executor's work with a build.

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
        """Whether decode runs. Voters may be decoded while a prompt is prefilled."""
        voter = self.geometry.voter
        return self.generates or (not self.full_cache and voter is not None and voter.decodes)


@dataclass(frozen=True, kw_only=True)
class GraphKind:
    """One kind of graph.

    specs: inputs but weights, and outputs, by a graph's facts; methods add theirs. optional:
        outputs that may be missing.
    loaded_if: whether an executor loads the graph, where the build has it.
    traced_as: the trace that it is made from; "": of its own name.
    rows: what the rows of its inputs are: of one prompt, or the batch slots.
    sized_by: what NAME.N has N of; "": there is only one size.
    shortens: whether there are graphs of it for chunks of fewer tokens, NAME.cM.
    has_baseline: whether --baseline adds the same graph for the full cache.
    writes_in_place: whether its `present.*` have to share the buffers of `past_key_values.*`.
    has_weights: whether it runs layers of the model.
    has_attention: whether some layer attends to a cache.
    attended: keys that a query sees, by the graph options, the positions that its layer reaches (0:
        all), its chunk's rows, and the cache's slots.
    checks_drafts: whether it is a decode step of several tokens of each batch slot.
    counts_votes: whether scores of a vote are formed in it.
    extends_rows: whether it takes tokens onto a compressed row.
    owns_caches: whether its caches are allocated for it, and not another graph's.
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
    has_attention: bool = True
    attended: Attended = lambda options, reach, rows, slots: slots
    checks_drafts: bool = False
    counts_votes: bool = False
    extends_rows: bool = False
    owns_caches: bool = False

    @property
    def trace(self) -> str:
        """The name of the trace that it is made from."""
        return self.traced_as or self.name
