"""Whose queries vote on a prompt's positions, and how their votes are counted."""

from dataclasses import dataclass

from snapexport.errors import UserError, require_at_least

DEFAULT_L_OBS = 8
"""KV-Compress found 8 best; SnapKV uses 32."""

DEFAULT_POOL_KERNEL = 31
"""31 spans an answer: 7 keeps only three tokens after the one that the window's queries attend to,
and a tokenizer may spell a number digit by digit (docs/quality.md)."""

VOTE_QUERIES = ("prompt", "pseudo", "repeat", "calibrated")
"""Whose queries vote (snapexport.contract.voters)."""

VOTING_ROWS = 64
"""Repeated tokens whose scores [H,VOTING_ROWS,T] exist at the same time: 1 GiB for 32 heads and
131,072 positions."""


@dataclass(frozen=True, slots=True)
class Vote:
    """The vote's options. Raises UserError for invalid values.

    L_obs: W, the number of last prompt tokens whose queries vote (SnapKV). pool_kernel: P, the
    width of the pool over the votes (odd). vote, pool, softmax, group: the options by name. budget:
    the rule that shared K. vote_queries: whose queries vote, of VOTE_QUERIES.
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
        if self.vote_queries not in VOTE_QUERIES:
            raise UserError(
                f"no vote queries '{self.vote_queries}'", f"choose from {', '.join(VOTE_QUERIES)}"
            )

    @property
    def options(self) -> dict[str, str]:
        """The options of SnapKVSelect, by stage."""
        stages = ("softmax", "vote", "pool", "group")
        return {stage: getattr(self, stage) for stage in stages}
