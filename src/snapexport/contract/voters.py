"""Who votes on a prompt's positions: a row for each of VOTE_QUERIES."""

from dataclasses import dataclass

from snapexport.contract.vote import Vote


@dataclass(frozen=True, slots=True)
class Voters:
    """words: who, for people, with {W} for how many. counts: how their votes are counted, where the
    vote's options do not say it. unused: fields of the vote that have no use then."""

    words: str
    counts: str = ""
    unused: tuple[str, ...] = ()


_WINDOW = "L_obs", "vote", "softmax", "group"

VOTERS = {
    "prompt": Voters("window {W}"),
    # The model writes them after the prompt, and they are forgotten.
    "pseudo": Voters("{W} pseudo tokens"),
    # The whole prompt is fed again, W tokens at a time, and forgotten.
    "repeat": Voters("the repeated prompt", "max", _WINDOW),
    "calibrated": Voters("the mean query of texts", "TriAttention's", _WINDOW),
}


def vote_summary(vote: Vote) -> tuple[str, str]:
    """Who votes, and how votes are counted: for people."""
    voters = VOTERS[vote.vote_queries]
    counted = [voters.counts, vote.pool] if voters.counts else vote.options.values()
    return voters.words.format(W=vote.L_obs), ", ".join(counted)
