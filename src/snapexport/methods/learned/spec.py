"""Says what the vote of learned scores needs, and what it does not go with."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from snapexport.contract import names
from snapexport.contract.graph_options import GraphOptions, MethodOptions, option
from snapexport.contract.graph_specs import GraphFacts, Specs, Tensors, after
from snapexport.contract.model_facts import ModelFacts
from snapexport.contract.rule import (
    FULL,
    KEEPS_ALL,
    LEAVE_OUT,
    NO_TOPK,
    RANKS,
    SAGE,
    STREAMING,
    Choice,
    Rule,
    some,
    without_window,
)
from snapexport.contract.vote import OPTIONS_OF_WINDOW, Voter
from snapexport.methods.extend.spec import ExtendOptions
from snapexport.methods.head_budgets.spec import HeadBudgetOptions
from snapexport.methods.method import Calibration, Method, votes_by

LEARNED = Voter(
    name="learned",
    help="none: scores learned on other texts, by --scores",
    words="learned scores",
    counts="learned",
    unused=OPTIONS_OF_WINDOW,
    default_window=1,
    pool=1,
    votes_on_blocks=False,
)
BOTH = Voter(
    name="both",
    help="half by the prompt's, half by learned scores",
    words="half by window {W}, half by learned scores",
)


@dataclass(frozen=True, kw_only=True)
class LearnedOptions(MethodOptions):
    """scores: the file of learned scores; a build's traces hold what it says."""

    scores: Path | None = option(
        None,
        "file of learned scores, from `snapexport calibrate --scores`, or a folder of KVzap's "
        "weights",
        "cache",
        metavar="PATH",
        recorded=False,
        of_traces=True,
    )

    def require_model(self, model: ModelFacts) -> None:
        if self.scores:
            from snapexport.methods.learned.scores import LearnedScores  # loads NumPy

            LearnedScores.read(self.scores).require_model(model)


def tensors(facts: GraphFacts, kind: str, common: Tensors) -> Tensors:
    """A chunk writes its scores beside its keys and values; the compress step takes them."""
    if facts.is_full:
        return {}, {}
    held = _cached_scores(facts, common) if extends(facts.options) else {}
    if kind == "compress":
        return _votes(facts, names.votes, facts.voting), after(held)
    if names.PAST_LENGTH in common[0]:
        own = [layer for layer in facts.voting if names.past_key(layer) in common[0]]
        return _votes(facts, names.past_votes, own), _votes(facts, names.votes, own)
    return {name: one for name, one in held.items() if kind != "prefill"}, after(held)


def _are_learned(options: GraphOptions) -> bool:
    """Whether scores are given, or measured with head budgets."""
    measured = options.of(HeadBudgetOptions).calibrate is not None
    return measured or options.of(LearnedOptions).scores is not None


def extends(options: GraphOptions) -> bool:
    """Whether cached positions keep their scores, to be chosen from again."""
    return options.of(ExtendOptions).extend


def _cached_scores(facts: GraphFacts, common: Tensors) -> Specs:
    """Scores of cached positions, in graphs that take or give compressed caches."""
    found: Specs = {}
    for cache in facts.held:
        _, shape = common[1].get(names.present_key(cache.cache)) or ("", ())
        if cache.shape.K and shape:
            found[cached_votes(cache.cache)] = ("float32", (*shape[:3], 1))
    return found


cached_votes = names.numbered("past_key_values.", ".votes")
"""The scores of positions in a compressed cache, float32 [B,Hkv,S,1]."""


def _votes(facts: GraphFacts, name_of: names.OfNumber, layers: Sequence[int]) -> Specs:
    kv_heads = facts.model.kv_heads
    return {name_of(n): ("float32", (1, kv_heads[n], facts.capacity)) for n in layers}


CHOICE = Choice(
    "--vote-queries {vote_queries}",
    {"vote_queries": "learned", "scores": True},
    lambda f: f.get("vote_queries") in (LEARNED.name, BOTH.name),
)
_ALONE = Choice(
    "--vote-queries learned",
    {"vote_queries": "learned", "scores": True},
    lambda f: f.get("vote_queries") == LEARNED.name,
)
_SCORES = some("--scores", "scores", True)
_NO_SCORES = Choice(
    "--scores",
    {"scores": None},
    lambda f: "scores" in f and not f["scores"] and f.get("calibrate") is None,
    joined="without",
)
_OTHERS = Choice(
    "--vote-queries {vote_queries}",
    {"vote_queries": "prompt"},
    lambda f: f.get("vote_queries") not in (None, LEARNED.name, BOTH.name),
)
_NONE = Choice(
    "--vote-queries",
    {"vote_queries": None},
    lambda f: "vote_queries" in f and f["vote_queries"] is None,
    joined="without",
)
_RULES = (
    Rule(_SCORES, FULL, KEEPS_ALL, LEAVE_OUT),
    Rule(_SCORES, STREAMING, NO_TOPK, LEAVE_OUT),
    Rule(CHOICE, SAGE, "there only the last token votes", "use --policy snapstream"),
    *without_window(_ALONE, "no query votes"),
    Rule(
        CHOICE,
        _NO_SCORES,
        "it votes by learned scores",
        "learn them with --calibrate, or by `snapexport calibrate BUILD --scores`",
    ),
    Rule(_SCORES, _OTHERS, "they are for --vote-queries learned or both", LEAVE_OUT),
    Rule(CHOICE, RANKS, "", LEAVE_OUT),
)

LEARNED_SCORES = Method(
    name="learned",
    home=__package__,
    parts=("surgery", "measure"),
    is_on=votes_by(LEARNED, BOTH),
    options=LearnedOptions,
    voters=(BOTH, LEARNED),
    implies_vote=_are_learned,
    rules=_RULES,
    measures=lambda geometry, options: (
        geometry.voter in (BOTH, LEARNED) and not options.of(LearnedOptions).scores
    ),
    tensors=tensors,
    calibration=Calibration(
        "scores",
        "learn what each position is worth, for `build --scores`",
        "scores.safetensors",
        "scores",
    ),
)
