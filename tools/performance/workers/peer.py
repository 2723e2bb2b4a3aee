"""What a worker makes of a library."""

from collections.abc import Sequence
from typing import Protocol


class Peer(Protocol):
    """A model, loaded, with one sequence."""

    def first_token(self, tokens: Sequence[int]) -> None:
        """From a prompt to its first logits."""
        ...

    def fill(self, context: int) -> None:
        """Stand behind `context` - 1 tokens, so that the next step attends to `context`."""
        ...

    def step(self) -> None:
        """One token."""
        ...
