"""Says what a chunk of sparse prefill attends to: as many blocks of its past as a budget holds.

Those are the first block, the most recent ones, and of the others those that the chunk's queries
score highest.
"""

from dataclasses import dataclass
from math import gcd

from snapexport.contract import names
from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.graph_kind import GraphKind
from snapexport.contract.graph_options import GraphOptions, MethodOptions, option
from snapexport.contract.graph_specs import GraphFacts, Specs, Tensors, after
from snapexport.contract.rule import (
    FULL,
    LATENT,
    LEAVE_OUT,
    NARROW_PROMPT,
    RANKS,
    SINGLE_SHOT,
    STATEFUL,
    Rule,
    some,
)
from snapexport.errors import UserError
from snapexport.methods.method import Method

GRAPH = "prefill-sparse"

past_block_key = names.numbered("past_key_values.", ".block_key")
"""Means of the keys of each block of a full-length cache, [1,Hkv,T/block,D]."""
present_block_key = names.numbered("present.", ".block_key")
"""`past_block_key` with the blocks before the chunk."""

_BLOCK = 64
"""Most positions of a block."""


@dataclass(frozen=True, slots=True)
class SparsePrefill:
    """Sparse attention of chunks whose past is longer than the budget; a prompt's last has none.

    budget: positions of the past that a chunk attends to. chunk: its tokens, a multiple of a
    block's, so that blocks never span the end of a chunk's past.
    """

    budget: int
    chunk: int

    @property
    def block(self) -> int:
        """Positions of a block."""
        return gcd(self.chunk, _BLOCK)

    @property
    def blocks(self) -> int:
        """Blocks of the past that are attended to."""
        return self.budget // self.block

    @property
    def recent(self) -> int:
        """Blocks that are attended to because they are the latest."""
        return self.blocks // 2

    @property
    def graph(self) -> str:
        """The name of the graph of sparse chunks."""
        return GRAPH

    def takes(self, start: int) -> bool:
        """Whether a chunk at position `start` inside a prompt is sparse."""
        return start > self.budget

    def require_room(self, L_max: int) -> None:
        """Raise UserError for a budget that is not a sum of blocks, or that no prompt exceeds."""
        block, least = self.block, 3 * self.block
        most = (L_max - 1) // self.chunk * self.chunk - self.chunk - block
        if most < least:
            raise UserError(
                f"--prefill-budget is for prompts of several chunks, but --L-max {L_max} is less "
                f"than {least} positions and two chunks of {self.chunk}",
                "leave it out, or use a larger --L-max or a smaller --prefill-chunk",
            )
        if not least <= self.budget <= most or self.budget % block:
            raise UserError(
                f"--prefill-budget {self.budget} is not a multiple of {block} from {least} to "
                f"{most}",
                f"use {max(least, min(most, self.budget) // block * block)}: a chunk of "
                f"{self.chunk} tokens attends to blocks of {block} positions, and beyond {most} "
                f"no chunk of --L-max {L_max} would be sparse",
            )


@dataclass(frozen=True, kw_only=True)
class SparsePrefillOptions(MethodOptions):
    """prefill_budget: positions of the past that a sparse chunk attends to; 0: none is sparse."""

    prefill_budget: int = option(
        0,
        "sparse prefill: all chunks of a long prompt but the last attend to N positions of its "
        "past; 0: to all",
        "",
        metavar="BUDGET",
    )

    def __post_init__(self) -> None:
        if self.prefill_budget < 0:
            raise UserError(
                f"--prefill-budget {self.prefill_budget} is below 0",
                "use 0 for prefill that attends to everything",
            )

    def require_chunk(self, prefill_chunk: int, L_max: int) -> None:
        if self.prefill_budget:
            SparsePrefill(self.prefill_budget, prefill_chunk).require_room(L_max)


def sparse_prefill(options: GraphOptions, prefill_chunk: int) -> SparsePrefill | None:
    """The sparse attention of chunks of `prefill_chunk` tokens; None where no chunk is sparse."""
    budget = options.of(SparsePrefillOptions).prefill_budget
    return SparsePrefill(budget, prefill_chunk) if budget else None


def _is_on(geometry: CacheGeometry, options: GraphOptions) -> bool:
    return options.of(SparsePrefillOptions).prefill_budget > 0


def attended(options: GraphOptions, reach: int, rows: int, slots: int) -> int:
    """Keys that a sparse chunk's query sees: a part of the past, and its chunk."""
    budget = options.of(SparsePrefillOptions).prefill_budget
    return min(budget + rows, slots) if reach <= budget else slots


def chunk(facts: GraphFacts) -> Tensors:
    """A chunk inside a long prompt: nobody reads its logits."""
    inputs: Specs = {
        names.INPUT_IDS: ("int64", (1, facts.chunk)),
        names.PAST_LENGTH: ("int64", (1,)),
    }
    states = facts.whole(names.past_key, names.past_value) | _block_keys(facts)
    return inputs | states, after(states)


def _block_keys(facts: GraphFacts) -> Specs:
    """Means of keys, in the layers that choose blocks."""
    sparse = sparse_prefill(facts.options, facts.chunk)
    assert sparse, "only builds with a budget have such chunks"
    blocks = facts.capacity // sparse.block
    return {
        past_block_key(index): (facts.dtype, (1, layer.kv_heads, blocks, layer.key_dim))
        for index, layer in facts.model.cached.items()
        if not layer.reach
    }


CHOICE = some("--prefill-budget", "prefill_budget", 2048)
_RULES = (
    Rule(
        CHOICE,
        STATEFUL,
        "blocks of keys begin where whole chunks do, and a state takes each token once",
        LEAVE_OUT,
    ),
    Rule(CHOICE, SINGLE_SHOT, "a single shot is one chunk", "use a --prefill-chunk below --L-max"),
    Rule(CHOICE, LATENT, "blocks are chosen by keys of KV heads", LEAVE_OUT),
    Rule(CHOICE, FULL, "the full cache is exact, for comparison", LEAVE_OUT),
    Rule(NARROW_PROMPT, CHOICE, "blocks are chosen by keys in the dtype"),
    Rule(CHOICE, RANKS, ""),
)

SPARSE_PREFILL = Method(
    name="sparse_prefill",
    home=__package__,
    parts=("surgery",),
    is_on=_is_on,
    options=SparsePrefillOptions,
    inner=sparse_prefill,
    rules=_RULES,
    kinds=(
        GraphKind(
            name=GRAPH,
            specs=chunk,
            built_if=lambda geometry, options, _: _is_on(geometry, options),
            loaded_if=lambda run: run.takes_prompts and run.chunks,
            traced_as="prefill",
            attended=attended,
        ),
    ),
    words=lambda geometry, options: {
        "prefill": "inside longer prompts to "
        f"{options.of(SparsePrefillOptions).prefill_budget} positions of the past"
    },
)
