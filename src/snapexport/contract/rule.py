"""Defines a row of the table of exclusions: two choices, why they exclude each other, a way out.

Has the choices that rules of several flags and methods name: policies, models, ranks and chunks.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from snapexport.contract.targets import FUSED_WIDTH
from snapexport.errors import UserError, flag_of

Facts = Mapping[str, Any]

_EITHER = "leave one of them out"
LEAVE_OUT = "leave it out"


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice that a rule is about. example: facts in which it holds.

    text: as users write it, with {field} for the value of a fact. joined: "with" a flag, "for" a
    model or a build, "by" a library, "on" a device.
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
        choice, other = self.choice.text.format_map(facts), self.other.text.format_map(facts)
        why = f": {self.why}" if self.why else ""
        message = f"{choice} is not supported {self.other.joined} {other}{why}"
        return UserError(message, self.way_out.format_map(facts))


def value(field: str, value: str) -> Choice:
    """A flag with that value."""
    return Choice(f"{flag_of(field)} {value}", {field: value}, lambda f: f.get(field) == value)


def flag(field: str, example: object = True) -> Choice:
    """A flag that is given, whatever its value."""
    text = flag_of(field) if example is True else f"{flag_of(field)} {{{field}}}"
    return Choice(text, {field: example}, lambda f: is_given(f.get(field)))


def not_given(field: str) -> Choice:
    """A flag that could have been given."""
    return Choice(
        flag_of(field), {field: None}, lambda f: f.get(field, True) is None, joined="without"
    )


def fact(text: str, field: str, value: object = True, joined: str = "with") -> Choice:
    """A fact with that value, in words."""
    return Choice(text, {field: value}, lambda f: f.get(field) == value, joined)


def some(text: str, field: str, example: object) -> Choice:
    """A fact that is neither absent nor 0 nor empty, in words."""
    return Choice(text, {field: example}, lambda f: bool(f.get(field)))


def is_given(value: object) -> bool:
    """Whether a flag has a value."""
    return value is not None and value is not False


def without_window(choice: Choice, why: str) -> Iterator[Rule]:
    """Rules of a vote without a window: its options have no effect (`OPTIONS_OF_WINDOW`)."""
    unused = {"L_obs": 8, "vote": "sum", "softmax": "causal", "group": "max"}
    for field, example in unused.items():
        yield Rule(flag(field, example), choice, why, LEAVE_OUT)


FULL, STREAMING, SAGE = (value("policy", policy) for policy in ("full", "streaming", "sage"))
KEEPS_ALL = "it keeps every position"
NO_TOPK = "it keeps no top-k"

LATENT = fact("latent attention", "latent", joined="for")
OTHER_HEADS = fact("models whose layers have different heads", "uneven_heads", joined="for")
WIDTHS = fact(
    f"keys and values that differ in width, or whose width is not a multiple of {FUSED_WIDTH}",
    "unfused_widths",
    joined="for",
)
IRREGULAR = fact(
    "models with uneven heads, shared caches or chunked attention", "irregular", joined="for"
)
SHARED_CACHES = fact("models whose layers share caches", "shared_caches", joined="for")
STATEFUL = fact("models with recurrent states", "states", joined="for")
CHUNKED = fact("chunked attention", "chunked", joined="for")

SINGLE_SHOT = fact("a prefill chunk of L_max", "single_shot")
BASELINE = flag("baseline")
RANKS = Choice(
    "--tensor-parallel {tensor_parallel}",
    {"tensor_parallel": 2},
    lambda f: f.get("tensor_parallel", 1) != 1,
)
NARROW_PROMPT = Choice(
    "--prompt-cache-dtype {prompt_cache_dtype}",
    {"prompt_cache_dtype": "fp16", "dtype": "fp32"},
    lambda f: f.get("prompt_cache_dtype") not in (None, f.get("dtype")),
)

# Of a run.
BLOCKS = value("prefill", "blocks")
PARKED = some("--parked-rows {parked_rows}", "parked_rows", 1)
OUTPUTS = some("--compress-every {compress_every}", "compress_every", 64)
ONTO_ROWS = fact("prefill onto earlier rows", "prefill", "both")
GENAI = fact("`snapexport genai`", "command", "genai")


def not_in_genai(choice: Choice) -> Rule:
    """A rule about what a graph of onnxruntime-genai cannot have."""
    why = "genai passes tokens and holds keys and values of one type, no more"
    return Rule(GENAI, choice, why, "build it again without it")
