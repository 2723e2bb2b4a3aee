"""What every task can do, and the errors that tasks share."""

from collections.abc import Iterator
from typing import Protocol

from tokenizers import Tokenizer

from snapexport.contract.errors import UserError
from snapexport.eval.tasks.sample import Sample


class Task(Protocol):
    """Makes samples on the spot, from a seed alone."""

    @property
    def name(self) -> str: ...

    def sample(
        self,
        tokenizer: Tokenizer,
        seed: int,
        tokens: int,
        depth: float | None = None,
        answer_tokens: int = 0,
    ) -> Sample:
        """The sample of a seed: always the same one for the same arguments.

        tokens: what context and question have together, at most and as nearly as a line of
        noise allows. depth: the first needle's place as a share of the context, by default
        the seed's choice. answer_tokens: least length of the reference, for the task whose
        answers have no length of their own (`long_answer`); the others take no notice.
        """
        ...

    def noise(self, seed: int) -> Iterator[str]:
        """Lines without end, each with its newline: what stands between the needles."""
        ...

    def excerpt(self) -> str:
        """A few lines of the task, with everything in them that a tokenizer must spell."""
        ...


def require_depth(depth: float | None) -> None:
    """Refuse a depth that is no share."""
    if depth is not None and not 0 <= depth <= 1:
        raise UserError(f"a depth of {depth} is not a share of the context", "use 0 to 1")


def too_short(task: str, tokens: int, least: int) -> UserError:
    """A sample does not fit even without noise."""
    return UserError(
        f"a sample of the task '{task}' does not fit into {tokens} tokens",
        f"this one needs {least} tokens or more",
    )
