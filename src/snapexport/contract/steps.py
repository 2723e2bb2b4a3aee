"""How many tokens of a batch slot a decode step takes."""

from dataclasses import dataclass

from snapexport.errors import UserError, require_at_least

MOST_TOKENS_PER_STEP = 64


@dataclass(frozen=True, slots=True)
class Steps:
    """tokens_per_step: q, the most tokens of a batch slot in a step. Raises UserError."""

    tokens_per_step: int = 1

    def __post_init__(self) -> None:
        require_at_least("--tokens-per-step", self.tokens_per_step, 1)
        if self.tokens_per_step > MOST_TOKENS_PER_STEP:
            raise UserError(
                f"--tokens-per-step {self.tokens_per_step} is above {MOST_TOKENS_PER_STEP}",
                "use 4 to 8: drafts are rarely right for longer",
            )

    @property
    def several(self) -> bool:
        """Whether a step may take more than one token."""
        return self.tokens_per_step > 1

    @property
    def spare(self) -> int:
        """Ring slots beyond L_recent that steps of so many tokens need."""
        return 2 * (self.tokens_per_step - 1)
