"""Whose queries vote on a prompt's positions, and how their votes are counted."""

from dataclasses import dataclass

from snapexport.errors import UserError, require_at_least

DEFAULT_L_OBS = 8
"""KV-Compress found 8 best; SnapKV uses 32."""

DEFAULT_POOL_KERNEL = 31
"""31 spans an answer: 7 keeps only three tokens after the one that the window's queries attend to,
and a tokenizer may spell a number digit by digit (docs/quality.md)."""

VOTING_ROWS = 64
"""Repeated tokens whose scores [H,VOTING_ROWS,T] exist at the same time: 1 GiB for 32 heads and
131,072 positions."""


@dataclass(frozen=True, slots=True)
class Voters:
    """Who votes on a prompt's positions.

    words: who, with {W} for how many. counts: how their votes are counted, where no option of the
    vote says it. unused: the vote's fields that have no use then.
    """

    words: str
    counts: str = ""
    unused: tuple[str, ...] = ()


_ALONE = "L_obs", "vote", "softmax", "group"

VOTERS = {
    "prompt": Voters("window {W}"),
    # The model writes them after the prompt, and they are forgotten.
    "pseudo": Voters("{W} pseudo tokens"),
    # The whole prompt is fed again, W tokens at a time, and forgotten.
    "repeat": Voters("the repeated prompt", "max", _ALONE),
    "calibrated": Voters("the mean query of texts", "TriAttention's", _ALONE),
}
"""Whose queries vote, by the option's value."""


@dataclass(frozen=True, slots=True)
class Vote:
    """The vote's options. Raises UserError for invalid values.

    L_obs: W, the number of last prompt tokens whose queries vote (SnapKV). pool_kernel: P, the
    width of the pool over the votes (odd). vote, pool, softmax, group: the options by name. budget:
    the rule that shared K. vote_queries: whose queries vote, of VOTERS.
    """

    L_obs: int = DEFAULT_L_OBS
    pool_kernel: int = DEFAULT_POOL_KERNEL
    vote: str = "sum-squares"
    pool: str = "avg"
    softmax: str = "causal"
    group: str = "mean"
    budget: str = "uniform"
    vote_queries: str = "prompt"

    def __post_init__(self) -> None:
        require_at_least("--L-obs", self.L_obs, 1)
        require_at_least("--pool-kernel", self.pool_kernel, 1)
        if self.pool_kernel % 2 == 0:
            raise UserError(
                f"--pool-kernel {self.pool_kernel} is even: its window would have no middle",
                f"use --pool-kernel {self.pool_kernel + 1}",
            )
        if self.vote_queries not in VOTERS:
            raise UserError(
                f"no vote queries '{self.vote_queries}'", f"choose from {', '.join(VOTERS)}"
            )

    @property
    def who(self) -> str:
        """Who votes, for people."""
        return VOTERS[self.vote_queries].words.format(W=self.L_obs)

    @property
    def counting(self) -> str:
        """How the votes are counted, for people."""
        counts = VOTERS[self.vote_queries].counts
        return f"{counts}, {self.pool}" if counts else ", ".join(self.options.values())

    @property
    def options(self) -> dict[str, str]:
        """The options of SnapKVSelect, by stage."""
        stages = ("softmax", "vote", "pool", "group")
        return {stage: getattr(self, stage) for stage in stages}

    @property
    def pseudo_tokens(self) -> int:
        """Tokens that are written after a prompt, so that their queries vote; 0: none."""
        return self.L_obs if self.vote_queries == "pseudo" else 0

    @property
    def repeats(self) -> bool:
        """Whether the prompt is fed again, so that the queries of all its tokens vote."""
        return self.vote_queries == "repeat"

    @property
    def calibrated(self) -> bool:
        """Whether the mean query of other texts votes, and nobody of the prompt."""
        return self.vote_queries == "calibrated"

    @property
    def after_prompt(self) -> int:
        """Positions after a prompt that the full-length cache holds for the vote."""
        return self.L_obs if self.repeats else self.pseudo_tokens

    def block_voters(self, chunk: int) -> int:
        """A prompt's last tokens that vote on each of its blocks: W, and at most half a chunk."""
        return 0 if self.calibrated else min(self.L_obs, chunk // 2)
