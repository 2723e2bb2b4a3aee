"""Whose queries vote on a prompt's positions, and how their votes are counted."""

from dataclasses import dataclass, field

from snapexport.errors import UserError, require_at_least

DEFAULT_L_OBS = 8
"""KV-Compress found 8 best; SnapKV uses 32."""

DEFAULT_POOL_KERNEL = 31
"""31 spans an answer: 7 keeps only three tokens after the one that the window's queries attend to,
and a tokenizer may spell a number digit by digit (docs/quality.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Voter:
    """Whose queries vote. The defaults are those of a prompt's own last W tokens.

    name: the value of --vote-queries. help: who that is, for --help. words: who votes, for people,
    with {W} for the number of tokens. counts: how the votes are counted, where the vote's options
    do not say it. unused: fields of `Vote` that have no effect. default_window: the default of W;
    None: it follows from the chat template. pool: the default of P; None: it follows from
    K. short_ring: the ring is 128 cache slots by default, or 2 % of L_max, and at most half of the
    cache. takes_chunk: W is the prefill chunk. is_in_ring: W may not exceed the ring.
    votes_on_blocks: a prompt's last tokens vote on each of its blocks.
    follows_prompt: W tokens are fed after the prompt, and need room in the full-length cache.
    decodes: they are decoded.
    """

    name: str = "prompt"
    help: str = "the last --L-obs prompt tokens'"
    words: str = "window {W}"
    counts: str = ""
    unused: tuple[str, ...] = ()
    default_window: int | None = None
    pool: int | None = None
    short_ring: bool = False
    takes_chunk: bool = False
    is_in_ring: bool = True
    votes_on_blocks: bool = True
    follows_prompt: bool = False
    decodes: bool = False

    @property
    def by_window(self) -> bool:
        """Whether the window of the last chunk's queries votes, by the vote's options."""
        return not self.counts


OPTIONS_OF_WINDOW = "L_obs", "vote", "softmax", "group"
"""Fields of `Vote` that have no effect where no window of queries votes."""


@dataclass(frozen=True, slots=True)
class Vote:
    """The vote's options. Raises UserError for invalid values.

    L_obs: W, the number of last prompt tokens whose queries vote (SnapKV). pool_kernel: P, the
    width of the pool over the votes (odd). vote, pool, softmax, group: the options by name. budget:
    the rule that shared K. voter: whose queries vote.
    """

    L_obs: int = DEFAULT_L_OBS
    pool_kernel: int = DEFAULT_POOL_KERNEL
    vote: str = "sum-squares"
    pool: str = "avg"
    softmax: str = "causal"
    group: str = "mean"
    budget: str = "uniform"
    voter: Voter = field(default_factory=Voter)

    def __post_init__(self) -> None:
        require_at_least("--L-obs", self.L_obs, 1)
        require_at_least("--pool-kernel", self.pool_kernel, 1)
        if self.pool_kernel % 2 == 0:
            raise UserError(
                f"--pool-kernel {self.pool_kernel} is even: its window would have no middle",
                f"use --pool-kernel {self.pool_kernel + 1}",
            )

    @property
    def vote_queries(self) -> str:
        """The value of --vote-queries."""
        return self.voter.name

    @property
    def options(self) -> dict[str, str]:
        """The options of SnapKVSelect, by stage."""
        stages = ("softmax", "vote", "pool", "group")
        return {stage: getattr(self, stage) for stage in stages}

    @property
    def words(self) -> tuple[str, str]:
        """Who votes, and how votes are counted, for people."""
        counted = [self.voter.counts, self.pool] if self.voter.counts else self.options.values()
        return self.voter.words.format(W=self.L_obs), ", ".join(counted)
