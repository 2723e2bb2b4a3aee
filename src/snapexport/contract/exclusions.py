"""The table of choices that do not go together, with why and what to do instead.

`build` and `plan` read it for flags, a manifest for what it says; `tools/combinations.py` prints it
as docs/reference/combinations.md. Range checks of a single value stand where the value does.

Facts are flags by field, and `latent`: whether the model has latent attention. What is not known
is absent.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from snapexport.contract.targets import TARGETS, TargetCapabilities, capabilities, targets_with
from snapexport.errors import UserError, flag_of

Facts = Mapping[str, Any]

_EITHER = "leave one of them out"


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice that a rule is about. example: facts in which it holds.

    text: as users write it, with {field} for the value of a fact. joined: "with" a flag, "for" a
    model.
    """

    text: str
    example: Facts
    holds: Callable[[Facts], bool]
    joined: str = "with"


@dataclass(frozen=True, slots=True)
class Rule:
    """`choice` is refused beside `other`. way_out: the hint."""

    choice: Choice
    other: Choice
    why: str
    way_out: str = _EITHER

    def is_broken(self, facts: Facts) -> bool:
        """Whether both hold."""
        return self.choice.holds(facts) and self.other.holds(facts)

    def error(self, facts: Facts) -> UserError:
        """The error for facts that break the rule."""
        choice, other = (one.text.format_map(facts) for one in (self.choice, self.other))
        why = f": {self.why}" if self.why else ""
        message = f"{choice} is not supported {self.other.joined} {other}{why}"
        return UserError(message, self.way_out.format_map(facts))


def require_compatible(facts: Facts) -> None:
    """Raise UserError for the first rule that the facts break."""
    for rule in broken(facts):
        raise rule.error(facts)


def broken(facts: Facts) -> Iterator[Rule]:
    """The rules that the facts break, in the table's order."""
    return (rule for rule in RULES if rule.is_broken(facts))


def _value(field: str, value: str) -> Choice:
    return Choice(f"{flag_of(field)} {value}", {field: value}, lambda f: f.get(field) == value)


def _flag(field: str, example: object = True) -> Choice:
    """A flag that is given, whatever its value."""
    text = flag_of(field) if example is True else f"{flag_of(field)} {{{field}}}"
    return Choice(text, {field: example}, lambda f: _is_given(f.get(field)))


def _is_given(value: object) -> bool:
    return value is not None and value is not False


def _targets(lacks: Callable[[TargetCapabilities, Facts], bool], text: str = "") -> Choice:
    """Targets whose record lacks something."""
    return Choice(
        f"--target {{target}}{text}",
        {},
        lambda f: "target" in f and lacks(capabilities(f["target"]), f),
    )


INT4, FP8 = _value("weights", "int4"), _value("weights", "fp8")
QUANTIZED = _flag("weights", "int4")
SHARED, LINKED = _flag("share_weights"), _flag("link_weights")
EXTEND, MTP, BASELINE = _flag("extend"), _flag("mtp"), _flag("baseline")
PSEUDO, REPEAT = _value("vote_queries", "pseudo"), _value("vote_queries", "repeat")
STEPS = Choice(
    "--tokens-per-step {tokens_per_step}",
    {"tokens_per_step": 4},
    lambda f: f.get("tokens_per_step", 1) > 1,
)
RANKS = Choice(
    "--tensor-parallel {tensor_parallel}",
    {"tensor_parallel": 2},
    lambda f: f.get("tensor_parallel", 1) != 1,
)
HEADS = Choice(
    "--head-budget",
    {"head_budget": True},
    lambda f: bool(f.get("head_budget")) or f.get("budget") == "heads",
)
EQUAL_HEADS = Choice(
    "--budget {budget}",
    {"budget": "uniform"},
    lambda f: f.get("budget") not in (None, "heads"),
)
STORED = Choice(
    "--cache-dtype {cache_dtype}",
    {"cache_dtype": "int8", "dtype": "fp32"},
    lambda f: f.get("cache_dtype") not in (None, f.get("dtype")),
)
INT8 = _value("cache_dtype", "int8")
FP16_CACHE = Choice(
    "--cache-dtype fp16",
    {"cache_dtype": "fp16", "dtype": "fp32"},
    lambda f: f.get("cache_dtype") == "fp16" != f.get("dtype"),
)
VALID, ALL = _value("decode_attention", "valid"), _value("decode_attention", "all")
CAPACITIES = Choice(
    "--prefill-capacities",
    {"prefill_capacities": (64,)},
    lambda f: bool(f.get("prefill_capacities")),
)
KEPT = Choice("--K {K}", {"K": 16}, lambda f: bool(f.get("K")))
FULL, STREAMING, SAGE = (_value("policy", policy) for policy in ("full", "streaming", "sage"))
LATENT = Choice("latent attention", {"latent": True}, lambda f: bool(f.get("latent")), joined="for")

_VOTES = {
    "vote": "sum",
    "pool": "max",
    "softmax": "causal",
    "group": "max",
    "budget": "pyramid",
    "vote_queries": "pseudo",
}
_UNUSED_BY_REPEAT = {"L_obs": 8, "vote": "sum", "softmax": "causal", "group": "max"}
_SIZES = {"kv_budget": 64, "L_sink": 4, "L_recent": 32, "K": 16, "L_obs": 8, "pool_kernel": 7}
_KEEPS_ALL = "it keeps every position"
_OF_COMPRESSED = "the full cache has one form, and prefill extends it"


def _cache_dtypes() -> str:
    return "; ".join(
        f"--target {name}: {', '.join(record.cache_dtypes)}"
        for name, record in TARGETS.items()
        if record.cache_dtypes
    )


RULES: tuple[Rule, ...] = (
    # Weights.
    Rule(
        FP8,
        _targets(lambda target, f: not target.fp8_weights),
        "the CPU would dequantize every matrix anew in each run",
        "leave it out, and the weights are dequantized once, as they are written; or use "
        f"--target {targets_with('fp8_weights')}",
    ),
    Rule(
        INT4,
        _targets(lambda target, f: f.get("dtype") not in target.int4_dtypes, " --dtype {dtype}"),
        "",
        f"use --target {targets_with('int4_dtypes')} with --dtype fp32 or fp16",
    ),
    Rule(
        SHARED,
        INT4,
        "ONNX Runtime rearranges quantized weights, which it can do only with a graph's own",
    ),
    Rule(
        SHARED,
        FP8,
        "an engine would convert all of them to 32 bits at the start of each run, and hold that",
    ),
    Rule(LINKED, INT4, "quantized weights are new files"),
    # Caches.
    Rule(
        INT8,
        ALL,
        "int8 caches are read only at valid slots",
        "drop --decode-attention all",
    ),
    Rule(
        FP16_CACHE,
        VALID,
        "ONNX Runtime's operator for valid slots takes longer over fp16 than over fp32",
        "drop one of them, or use --cache-dtype int8",
    ),
    Rule(
        STORED,
        _targets(
            lambda target, f: (
                f.get("dtype") != "fp32" or f.get("cache_dtype") not in target.cache_dtypes
            ),
            " --dtype {dtype}",
        ),
        "",
        f"leave it out, or use --dtype fp32 and one of these: {_cache_dtypes()}",
    ),
    Rule(
        VALID,
        _targets(lambda target, f: not target.valid_slots),
        "",
        f"leave it out, or use --target {targets_with('valid_slots')}",
    ),
    Rule(
        INT8,
        LATENT,
        "a cache of latents is small already",
        "leave it out, or use --cache-dtype fp16",
    ),
    Rule(VALID, LATENT, "ONNX Runtime has no operator for it", "leave it out"),
    Rule(
        CAPACITIES,
        _targets(lambda target, f: not target.attends_to_capacity),
        "its attention reads a prompt no further than it is long",
        f"leave it out, or use --target {targets_with('attends_to_capacity')}",
    ),
    # Policies and votes.
    Rule(EXTEND, FULL, _OF_COMPRESSED, "leave it out"),
    Rule(STORED, FULL, _OF_COMPRESSED, "leave it out: the full cache has the build's dtype"),
    Rule(VALID, FULL, _OF_COMPRESSED, "leave it out"),
    Rule(BASELINE, FULL, "its graphs are the baseline's already"),
    *(
        Rule(_flag(field, example), FULL, _KEEPS_ALL, "leave it out")
        for field, example in (_SIZES | _VOTES).items()
    ),
    Rule(HEADS, FULL, _KEEPS_ALL, "leave it out"),
    Rule(_flag("head_groups", 2), FULL, _KEEPS_ALL, "leave it out"),
    *(
        Rule(_flag(field, example), STREAMING, "it keeps no top-k", "leave it out")
        for field, example in _VOTES.items()
    ),
    Rule(KEPT, STREAMING, "it keeps no top-k", "leave it out"),
    Rule(HEADS, STREAMING, "it keeps no top-k", "leave it out"),
    Rule(HEADS, EQUAL_HEADS, "it shares K among KV heads"),
    Rule(HEADS, REPEAT, ""),
    Rule(EXTEND, PSEUDO, "the end of a block or of its prompt votes"),
    Rule(EXTEND, REPEAT, "the end of a block or of its prompt votes"),
    Rule(REPEAT, SAGE, "there the last token votes alone", "use --policy snapstream"),
    *(
        Rule(
            _flag(field, example),
            REPEAT,
            "a position is worth the largest attention that any repeated token gives it",
            "leave it out",
        )
        for field, example in {
            "L_obs": 8,
            "vote": "sum",
            "softmax": "causal",
            "group": "max",
        }.items()
    ),
    # Ranks.
    *(
        Rule(choice, RANKS, "")
        for choice in (QUANTIZED, MTP, BASELINE, LINKED, STEPS, PSEUDO, REPEAT, HEADS)
    ),
)
