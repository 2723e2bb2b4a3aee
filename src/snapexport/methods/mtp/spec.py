"""Says which graphs multi-token prediction has, and what they take."""

from dataclasses import dataclass
from typing import ClassVar

from snapexport.contract import names
from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.graph_kind import GraphKind
from snapexport.contract.graph_options import GraphOptions, MethodOptions, option
from snapexport.contract.graph_specs import GraphFacts, Specs, Tensors, after
from snapexport.contract.rule import IRREGULAR, LEAVE_OUT, RANKS, Rule, flag, not_in_genai
from snapexport.methods.method import Method

GRAPH, PREFILL_GRAPH = "mtp", "mtp-prefill"

NEXT_HIDDEN_STATES = "next_hidden_states"
"""The layer's own hidden states, [B,1,E]: the `hidden_states` of a step that follows."""


@dataclass(frozen=True, kw_only=True)
class MtpOptions(MethodOptions):
    """mtp: graphs of the layer, and the hidden states that it takes."""

    on_full_cache: ClassVar[bool] = True

    mtp: bool = option(
        False,
        "also write graphs of the checkpoint's layer for multi-token prediction, which drafts a "
        "further token (DeepSeek-V3 and R1)",
    )


def ring_slots(geometry: CacheGeometry) -> int:
    """Positions that the layer sees: the last layer's ring, or all of them."""
    return geometry.layers[-1].L_recent if geometry.compresses else geometry.L_max


def draft(facts: GraphFacts) -> Tensors:
    """A step of multi-token prediction."""
    batch = facts.batch
    ids: Specs = dict.fromkeys((names.INPUT_IDS, names.POSITION_IDS), ("int64", (batch, 1)))
    states, ring = _hidden_states(facts, batch, 1), _ring(facts, batch)
    outputs = facts.logits(batch) | {NEXT_HIDDEN_STATES: states[names.HIDDEN_STATES]}
    return ids | states | ring, outputs | after(ring)


def fill(facts: GraphFacts) -> Tensors:
    """A chunk of multi-token prediction."""
    chunk, ring = facts.chunk, _ring(facts, 1)
    ids: Specs = {names.INPUT_IDS: ("int64", (1, chunk))}
    lengths: Specs = dict.fromkeys((names.PAST_LENGTH, names.CHUNK_LENGTH), ("int64", (1,)))
    return ids | lengths | _hidden_states(facts, 1, chunk) | ring, after(ring)


def _hidden_states(facts: GraphFacts, rows: int, tokens: int) -> Specs:
    return {names.HIDDEN_STATES: (facts.dtype, (rows, tokens, facts.hidden_size))}


def _ring(facts: GraphFacts, rows: int) -> Specs:
    """The cache of the layer, which comes after the model's last."""
    count, slots = facts.model.num_hidden_layers, ring_slots(facts.geometry)
    past, last = (names.past_key(count), names.past_value(count)), facts.model.layer(count - 1)
    return {
        name: (facts.stored, (rows, last.kv_heads, slots, width))
        for name, width in zip(past, last.widths, strict=True)
    }


def tensors(facts: GraphFacts, kind: str, common: Tensors) -> Tensors:
    """The hidden states of every graph that runs the model's layers."""
    if kind in (GRAPH, PREFILL_GRAPH) or names.INPUT_IDS not in common[0]:
        return {}, {}
    rows, tokens = common[0][names.INPUT_IDS][1]
    return {}, _hidden_states(facts, rows, tokens)


def _is_on(geometry: CacheGeometry, options: GraphOptions) -> bool:
    return options.of(MtpOptions).mtp


def _words(geometry: CacheGeometry, options: GraphOptions) -> dict[str, str]:
    seen = ring_slots(geometry)
    return {"drafts": f"multi-token prediction, whose layer sees the last {seen} positions"}


_CHOICE = flag("mtp")

MTP = Method(
    name="mtp",
    home=__package__,
    parts=("surgery", "run", "export"),
    is_on=_is_on,
    options=MtpOptions,
    rules=(Rule(_CHOICE, IRREGULAR, "", LEAVE_OUT), Rule(_CHOICE, RANKS, "")),
    run_rules=(not_in_genai(_CHOICE),),
    further_layers=lambda options: int(options.of(MtpOptions).mtp),
    tensors=tensors,
    kinds=(
        GraphKind(
            name=GRAPH,
            specs=draft,
            built_if=lambda geometry, options, chunk: _is_on(geometry, options),
            loaded_if=lambda run: run.generates and run.drafts,
            rows="batch",
            owns_caches=True,
        ),
        GraphKind(
            name=PREFILL_GRAPH,
            specs=fill,
            built_if=lambda geometry, options, chunk: _is_on(geometry, options),
            loaded_if=lambda run: run.generates and run.drafts,
            writes_in_place=False,  # it reads its input while it writes
            has_attention=False,
        ),
    ),
    reads_hidden_states=True,
    report=lambda geometry, options: {
        "draft_ring": ring_slots(geometry) if _is_on(geometry, options) else None
    },
    words=_words,
)
