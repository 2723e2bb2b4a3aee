"""Says how a prompt is repeated, and which graph counts the votes of the repetition."""

from collections.abc import Sequence
from dataclasses import dataclass

from snapexport.contract import names
from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.graph_kind import GraphKind
from snapexport.contract.graph_specs import GraphFacts, Specs, Tensors
from snapexport.contract.model_facts import ModelFacts
from snapexport.contract.pieces import Piece
from snapexport.contract.rule import (
    LEAVE_OUT,
    RANKS,
    SAGE,
    SINGLE_SHOT,
    STATEFUL,
    Choice,
    Rule,
    flag,
    value,
    without_window,
)
from snapexport.contract.vote import OPTIONS_OF_WINDOW, Voter
from snapexport.methods.head_budgets.spec import CHOICE as HEADS
from snapexport.methods.method import Method, votes_by
from snapexport.methods.window_vote.spec import gives_windows, windows

PIECE, GRAPH = "repeat", "vote"

OVERLAP = 8
"""Tokens with which a repeated chunk begins again, so that the model recognises where in the prompt
it is. KVzip's prompt names as many."""

VOTING_ROWS = 64
"""Repeated tokens whose scores [H,VOTING_ROWS,T] exist at the same time: 1 GiB for 32 heads and
131,072 positions."""

VOTER = Voter(
    name="repeat",
    help="those of the whole prompt, which is fed a second time",
    words="the repeated prompt",
    counts="max",
    unused=OPTIONS_OF_WINDOW,
    pool=1,
    short_ring=True,
    takes_chunk=True,
    is_in_ring=False,
    follows_prompt=True,
)

present_votes = names.numbered("present_votes.")
"""`names.votes` after a further repeated chunk: the largest attention to each position so far."""


@dataclass(frozen=True, slots=True)
class Repetition:
    """The prompt is fed once more, a chunk at a time, if the vote can't keep all of it.

    kept_whole: tokens of the longest prompt that is kept whole.
    """

    kept_whole: int

    def pieces(self, prompt_length: int, chunk: int) -> Sequence[Piece]:
        """One chunk for each of the prompt's, and a few more where they overlap."""
        if prompt_length <= self.kept_whole:
            return ()
        return [
            Piece(PIECE, start, min(start + chunk, prompt_length), chunk, only_votes=True)
            for start in repeated_starts(prompt_length, chunk)
        ]


def repeated_starts(prompt_length: int, chunk: int) -> list[int]:
    """Where in the prompt each repeated chunk begins; the last one ends with the prompt."""
    step = chunk - min(OVERLAP, chunk // 2)
    last = max(0, prompt_length - chunk)
    return [*range(0, last, step), last]


def repeated_chunk(prompt: Sequence[int], chunk: int, start: int) -> list[int]:
    """The tokens of a repeated chunk. A shorter prompt is repeated until it fills one."""
    tokens = list(prompt[start : start + chunk])
    return (tokens * -(-chunk // len(tokens)))[:chunk]


def vote(facts: GraphFacts) -> Tensors:
    """The votes of a repeated chunk, in the layers that have some."""
    keys = (names.past_key, names.past_value) if facts.model.latent else (names.past_key,)
    read = {name(layer) for layer in facts.voting for name in (*keys, names.query_window)}
    given = facts.whole(names.past_key, names.past_value) | windows(facts)
    inputs: Specs = {names.PROMPT_LENGTH: ("int64", (1,))}
    inputs |= {name: spec for name, spec in given.items() if name in read}
    return inputs | _votes(facts, names.votes), _votes(facts, present_votes)


def _votes(facts: GraphFacts, name_of: names.OfNumber) -> Specs:
    L_max, kv_heads = facts.geometry.L_max, facts.model.kv_heads
    return {name_of(layer): ("float32", (1, kv_heads[layer], L_max)) for layer in facts.voting}


def tensors(facts: GraphFacts, kind: str, common: Tensors) -> Tensors:
    """Prefill outputs the queries of each chunk; the compress step takes votes."""
    given = _votes(facts, names.votes) if kind == "compress" else {}
    return given, windows(facts) if gives_windows(facts, kind) else {}


def vote_scores(model: ModelFacts, geometry: CacheGeometry, slots: int) -> int:
    """Bytes of the scores of some rows at a time."""
    rows = min(geometry.vote.L_obs, VOTING_ROWS)
    return max(layer.heads for layer in model.layers) * rows * slots * 4


CHOICE = value("vote_queries", "repeat")
_WORTH = "a position is worth the largest attention that any repeated token gives it"
_OTHER_CHUNKS = Choice(
    "a prefill chunk of {prefill_chunk} for --L-obs {voters}",
    {"voters": 8, "prefill_chunk": 16},
    lambda f: "voters" in f and f["voters"] != f["prefill_chunk"],
)
_RULES = (
    Rule(
        CHOICE,
        STATEFUL,
        "a repeated prompt is taken back after its vote, and a state takes each token once",
        LEAVE_OUT,
    ),
    Rule(flag("extend"), CHOICE, "the end of a block or of its prompt votes"),
    Rule(CHOICE, SAGE, "there only the last token votes", "use --policy snapstream"),
    *without_window(CHOICE, _WORTH),
    Rule(
        CHOICE,
        SINGLE_SHOT,
        "a single shot keeps no full-length cache of the prompt",
        "use a --prefill-chunk below --L-max",
    ),
    Rule(CHOICE, _OTHER_CHUNKS, "all tokens of a prefill chunk vote", "leave --L-obs out"),
    Rule(HEADS, CHOICE, ""),
    Rule(CHOICE, RANKS, ""),
)

REPEAT = Method(
    name="repeat",
    home=__package__,
    parts=("surgery", "run", "measure"),
    is_on=votes_by(VOTER),
    voters=(VOTER,),
    rules=_RULES,
    tensors=tensors,
    kinds=(
        GraphKind(
            name=GRAPH,
            specs=vote,
            built_if=lambda geometry, options, chunk: geometry.voter == VOTER,
            loaded_if=lambda run: run.compresses,
            traced_as="prefill",
            has_weights=False,
            counts_votes=True,
        ),
    ),
    further=lambda geometry: Repetition(geometry.held_whole),
    vote_scores=vote_scores,
)
