"""Says what the graph of one more chunk takes, and what it does not go with."""

from dataclasses import dataclass, replace
from typing import ClassVar

from snapexport.contract import names
from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.graph_kind import GraphKind
from snapexport.contract.graph_options import GraphOptions, MethodOptions, option
from snapexport.contract.graph_specs import GraphFacts, Specs, Tensors, after
from snapexport.contract.rule import (
    BLOCKS,
    FULL,
    GENAI,
    LEAVE_OUT,
    ONTO_ROWS,
    OUTPUTS,
    PARKED,
    Choice,
    Rule,
    flag,
)
from snapexport.contract.run_rules import COMPILED, FULL_CACHE, OF_ONE_CHUNK, SEVERAL_SLOTS
from snapexport.methods.method import Method

GRAPH = "extend"

present_slot_positions = names.numbered("present_slot_positions.")
"""`slot_positions` after the step."""


@dataclass(frozen=True, kw_only=True)
class ExtendOptions(MethodOptions):
    """extend: the build has extend.onnx."""

    self_checked: ClassVar[bool] = True

    extend: bool = option(
        False,
        "add extend.onnx, which takes further tokens onto a compressed cache: a turn of a chat "
        "costs its own tokens, and prompts may be longer than --L-max",
        "",
    )


def _is_on(geometry: CacheGeometry, options: GraphOptions) -> bool:
    return options.of(ExtendOptions).extend


def extend(facts: GraphFacts) -> Tensors:
    """One more chunk onto a compressed cache."""
    chunk = facts.chunk
    inputs: Specs = {
        names.INPUT_IDS: ("int64", (1, chunk)),
        names.POSITION_IDS: ("int64", (1, chunk)),
        names.CHUNK_LENGTH: ("int64", (1,)),
    }
    states = facts.caches(1)
    for cache in facts.held:
        shape = (1, cache.kv_heads, cache.shape.cache_slots)
        states[names.slot_positions(cache.cache)] = ("int64", shape)
    return inputs | states, facts.logits(1) | after(states)


_WITHOUT = Choice(
    "a build without --extend",
    {"graphs": frozenset({"decode"})},
    lambda f: "graphs" in f and GRAPH not in f["graphs"],
    joined="for",
)

_WITHOUT_BOTH = replace(_WITHOUT, holds=lambda f: _WITHOUT.holds(f) and not FULL_CACHE.holds(f))
"""A full cache has one form, and prefill extends it."""

_AT_ONCE = replace(
    FULL_CACHE,
    text="a full cache that is filled at once",
    example={**FULL_CACHE.example, **OF_ONE_CHUNK.example},
    holds=lambda f: FULL_CACHE.holds(f) and OF_ONE_CHUNK.holds(f),
)

_FOR_GENAI = "build it again with --target onnxruntime --batch 1 --extend"
_ONE_FORM = "the full cache has one form, and prefill extends it"

EXTEND = Method(
    name="extend",
    home=__package__,
    parts=("surgery", "run"),
    is_on=_is_on,
    options=ExtendOptions,
    run_flags={
        "prefill": "chunks: into a cache of full length, compressed at the end; blocks: onto the "
        "compressed cache, beyond L_max too; for builds made with --extend",
        "parked_rows": "prompts whose compressed caches are kept for the next turn of a "
        "conversation; for builds made with --extend",
        "parked_dir": "folder where these caches are written too, and found again after a restart",
        "parked_dir_bytes": "most bytes in that folder (default: 16GiB)",
        "compress_every": "compress an answer whenever it has grown by N tokens; 0: never; for "
        "builds made with --extend",
    },
    in_blocks=ExtendOptions(extend=True),
    rules=(Rule(flag("extend"), FULL, _ONE_FORM, LEAVE_OUT),),
    run_rules=(
        Rule(GENAI, COMPILED, "its graph runs in ONNX Runtime", _FOR_GENAI),
        Rule(GENAI, SEVERAL_SLOTS, "its graph has one sequence", _FOR_GENAI),
        *(
            Rule(choice, _WITHOUT, "it has no extend.onnx", "build it again with --extend")
            for choice in (BLOCKS, PARKED, OUTPUTS, ONTO_ROWS)
        ),
        Rule(GENAI, _WITHOUT_BOTH, "it has no extend.onnx", _FOR_GENAI),
        Rule(
            GENAI,
            _AT_ONCE,
            "its prompts go block by block",
            "build it again with a smaller --prefill-chunk",
        ),
    ),
    kinds=(
        GraphKind(
            name=GRAPH,
            specs=extend,
            built_if=lambda geometry, options, _: _is_on(geometry, options),
            loaded_if=lambda run: run.takes_prompts and run.blocks,
            traced_as="prefill",
            shortens=True,
            extends_rows=True,
            writes_in_place=False,  # it moves what it keeps to other cache slots
            attended=lambda options, reach, rows, slots: slots + rows,
        ),
    ),
)
