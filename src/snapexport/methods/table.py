"""Lists the cache methods, and what follows from all of them together."""

from collections.abc import Container, Iterator, Mapping
from dataclasses import fields
from typing import Any

from snapexport.contract.geometry import CacheGeometry, Steps
from snapexport.contract.graph_options import CORE_FIELDS, GraphOptions, MethodOptions
from snapexport.contract.model_facts import ModelFacts
from snapexport.contract.pieces import InnerChunks
from snapexport.contract.rule import Facts
from snapexport.contract.vote import Voter
from snapexport.errors import UserError
from snapexport.methods.calibrated.spec import CALIBRATED
from snapexport.methods.extend.spec import EXTEND
from snapexport.methods.head_budgets.spec import HEAD_BUDGETS
from snapexport.methods.int8_cache.spec import INT8_CACHE
from snapexport.methods.learned.spec import LEARNED_SCORES
from snapexport.methods.method import Method
from snapexport.methods.mtp.spec import MTP
from snapexport.methods.pseudo.spec import PSEUDO
from snapexport.methods.repeat.spec import REPEAT
from snapexport.methods.several_tokens.spec import SEVERAL_TOKENS
from snapexport.methods.short_chunks.spec import SHORT_CHUNKS
from snapexport.methods.sparse_prefill.spec import SPARSE_PREFILL
from snapexport.methods.states.spec import STATES
from snapexport.methods.top_tokens.spec import TOP_TOKENS
from snapexport.methods.window_vote.spec import WINDOW_VOTE

METHODS: tuple[Method, ...] = (
    LEARNED_SCORES,
    WINDOW_VOTE,
    PSEUDO,
    REPEAT,
    CALIBRATED,
    HEAD_BUDGETS,
    INT8_CACHE,
    SPARSE_PREFILL,
    SHORT_CHUNKS,
    EXTEND,
    STATES,
    SEVERAL_TOKENS,
    MTP,
    TOP_TOKENS,
)
"""In the order in which their passes change a graph."""


def methods_on(geometry: CacheGeometry, options: GraphOptions) -> list[Method]:
    """The methods that a build uses."""
    return [method for method in METHODS if method.is_on(geometry, options)]


def steps(options: GraphOptions) -> Steps:
    """The tokens of decode's steps."""
    return Steps(max(method.step_tokens(options) for method in METHODS))


def chunks(
    options: GraphOptions, geometry: CacheGeometry, chunk: int, *, copies_weights: bool
) -> tuple[int, ...]:
    """Tokens of the chunks of all prefill graphs, ascending: those below `chunk`, and `chunk`.

    copies_weights: whether a further graph holds a copy of the weights. Raises UserError.
    """
    wanted = options, geometry, chunk, copies_weights
    shorter = {tokens for method in METHODS for tokens in method.chunks(*wanted)}
    return (*sorted(shorter), chunk)


def run_flags(kind: type) -> dict[str, str]:
    """Help of the fields of a class that say how a build with some method is run."""
    known = {one.name for one in fields(kind)}
    helps = (method.run_flags.items() for method in METHODS)
    return {name: text for each in helps for name, text in each if name in known}


def in_blocks(wanted: bool) -> list[MethodOptions]:
    """Options with which prompts can go block by block onto a compressed cache, or cannot."""
    known = (method.in_blocks for method in METHODS if method.in_blocks)
    return [given if wanted else type(given)() for given in known]


def inner_chunks(options: GraphOptions, prefill_chunk: int) -> InnerChunks | None:
    """The chunks inside a prompt that run in a graph of their own, if a build has such."""
    found = (method.inner(options, prefill_chunk) for method in METHODS)
    return next(filter(None, found), None)


def advice(geometry: CacheGeometry, model: ModelFacts) -> Iterator[tuple[Facts, str]]:
    """Flags that a plan advises, by field, and what for."""
    yield from filter(None, (method.advice(geometry, model) for method in METHODS))


def method_of_likeliest(outputs: Container[str]) -> Method | None:
    """The method from whose outputs of a graph the host samples, if there are such."""
    found = (one for one in METHODS if one.likeliest and one.likeliest.tokens in outputs)
    return next(found, None)


def voters() -> dict[str, Voter]:
    """Who can vote, by the value of --vote-queries."""
    return {one.name: one for method in METHODS for one in method.voters}


def voter_of(name: str) -> Voter:
    """The voter of that name. Raises UserError."""
    known = voters()
    if name not in known:
        raise UserError(f"no vote queries '{name}'", f"choose from {', '.join(known)}")
    return known[name]


def option_classes() -> list[type[MethodOptions]]:
    """The classes of all methods' flags."""
    return [method.options for method in METHODS if method.options]


def option_fields() -> dict[str, type[MethodOptions]]:
    """The methods' flags by field, and the class that has each."""
    return {one.name: kind for kind in option_classes() for one in fields(kind)}


def graph_options(flags: Mapping[str, Any]) -> GraphOptions:
    """The graph options of flags by field: the common ones and the methods'. Raises UserError."""
    common = {name: flags[name] for name in CORE_FIELDS if name in flags}
    return GraphOptions(**common, methods=tuple(_options(flags)))


def _options(flags: Mapping[str, Any]) -> Iterator[MethodOptions]:
    for kind in option_classes():
        own = {one.name: flags[one.name] for one in fields(kind) if one.name in flags}
        if own:
            yield kind(**own)


def flags_of(options: GraphOptions) -> Facts:
    """Every flag of graph options by field, as the table of exclusions asks about them."""
    common = {name: getattr(options, name) for name in CORE_FIELDS}
    methods = {name: getattr(options.of(kind), name) for name, kind in option_fields().items()}
    return common | methods
