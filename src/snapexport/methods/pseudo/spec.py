"""Says what pseudo tokens cost, and what they do not go with.

They vote as a prompt's own last tokens do: by the window of the last chunk.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.pieces import Piece
from snapexport.contract.rule import LEAVE_OUT, RANKS, SINGLE_SHOT, STATEFUL, Rule, flag, value
from snapexport.contract.vote import Voter
from snapexport.methods.method import Method, votes_by

PIECE = "pseudo"
VOTER = Voter(
    name="pseudo",
    help="those of as many tokens that the model writes after the prompt, and forgets",
    words="{W} pseudo tokens",
    follows_prompt=True,
    decodes=True,
)


@dataclass(frozen=True, slots=True)
class PseudoTokens:
    """`count` tokens are decoded after the prompt, and run as one more chunk.

    kept_whole: tokens of the longest prompt that is kept whole, without a vote.
    """

    count: int
    kept_whole: int

    def pieces(self, prompt_length: int, chunk: int) -> Sequence[Piece]:
        """One piece, in the step of the last chunk: the first token is overdue."""
        if prompt_length <= self.kept_whole:
            return ()
        steps = self.count - 1
        return [
            Piece(
                PIECE,
                prompt_length,
                prompt_length,
                steps + chunk,
                joined=True,
                only_votes=True,
                decode_steps=steps,
            )
        ]


def further(geometry: CacheGeometry) -> PseudoTokens:
    """The pseudo tokens of a build."""
    return PseudoTokens(geometry.after_prompt, geometry.held_whole)


_CHOICE = value("vote_queries", "pseudo")
_RULES = (
    Rule(
        _CHOICE,
        STATEFUL,
        "pseudo tokens are taken back after their vote, and a state takes each token once",
        LEAVE_OUT,
    ),
    Rule(flag("extend"), _CHOICE, "the end of a block or of its prompt votes"),
    Rule(
        _CHOICE,
        SINGLE_SHOT,
        "a single shot keeps no full-length cache of the prompt",
        "use a --prefill-chunk below --L-max",
    ),
    Rule(_CHOICE, RANKS, ""),
)

PSEUDO = Method(
    name="pseudo",
    home=__package__,
    parts=("run",),
    is_on=votes_by(VOTER),
    voters=(VOTER,),
    rules=_RULES,
    further=further,
)
