"""What a chunk of sparse prefill attends to: as many blocks of its past as a budget holds.

Those are the first block, the most recent ones, and of the others those that the chunk's queries
score highest. Knows no graph.
"""

from dataclasses import dataclass
from math import gcd

from snapexport.errors import UserError

_BLOCK = 64
"""Most positions of a block."""


@dataclass(frozen=True, slots=True)
class SparsePrefill:
    """Of chunks whose past is longer than the budget, but for a prompt's last one.

    budget: positions of the past that a chunk attends to. chunk: its tokens, a multiple of a
    block's, so that blocks never span the end of a chunk's past.
    """

    budget: int
    chunk: int

    @property
    def block(self) -> int:
        """Positions of a block."""
        return gcd(self.chunk, _BLOCK)

    @property
    def blocks(self) -> int:
        """Blocks of the past that are attended to."""
        return self.budget // self.block

    @property
    def recent(self) -> int:
        """Blocks that are attended to because they are the latest."""
        return self.blocks // 2

    def is_sparse(self, start: int) -> bool:
        """Whether a chunk at position `start` amid a prompt is sparse."""
        return start > self.budget

    def require_room(self, L_max: int) -> None:
        """Raise UserError for a budget that is no sum of blocks, or that no prompt exceeds."""
        block, least = self.block, 3 * self.block
        most = (L_max - 1) // self.chunk * self.chunk - self.chunk - block
        if most < least:
            raise UserError(
                f"--prefill-budget is for prompts of several chunks, but --L-max {L_max} is less "
                f"than {least} positions and two chunks of {self.chunk}",
                "leave it out, or use a larger --L-max or a smaller --prefill-chunk",
            )
        if not least <= self.budget <= most or self.budget % block:
            raise UserError(
                f"--prefill-budget {self.budget} is not a multiple of {block} from {least} to "
                f"{most}",
                f"use {max(least, min(most, self.budget) // block * block)}: a chunk of "
                f"{self.chunk} tokens attends to blocks of {block} positions, and beyond {most} "
                f"no chunk of --L-max {L_max} would be sparse",
            )
