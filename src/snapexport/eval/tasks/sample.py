"""One question about a long context, and how an answer to it is scored.

Knows no task and no tokenizer: everything is text and token ids here.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Sample:
    """A prompt (context, then question), and the answer that a perfect model continues it with.

    answers: what must occur in the output, in any order and any case.
    reference: the whole text that a perfect model writes right after the question.
    depth: where the first needle begins, as a share of the context's characters.
    context_ids carry the tokenizer's opening special tokens (BOS), the other ids carry none.
    """

    task: str
    context: str
    question: str
    answers: tuple[str, ...]
    reference: str
    depth: float
    context_ids: tuple[int, ...]
    question_ids: tuple[int, ...]
    reference_ids: tuple[int, ...]
    stop: tuple[str, ...] = ("\n",)

    @property
    def max_tokens(self) -> int:
        """Tokens to generate: the reference, a quarter more, and room for a few words."""
        return len(self.reference_ids) * 5 // 4 + 16

    def score(self, text: str) -> float:
        """The share of the answers that occur in the text (RULER's string_match_all)."""
        written = text.lower()
        return sum(answer.lower() in written for answer in self.answers) / len(self.answers)

    def score_first(self, token_ids: Sequence[int]) -> bool:
        """Whether the first token is right. Prefill sees the whole prompt: it gives it away."""
        return tuple(token_ids[:1]) == self.reference_ids[:1]

    def score_rest(self, token_ids: Sequence[int]) -> bool:
        """Whether all tokens after the first are the reference's, each at its place.

        `token_ids` begin with the first token, right, wrong or given. A reference of a single
        token has no rest, and so no way to fail.
        """
        return tuple(token_ids[1 : len(self.reference_ids)]) == self.reference_ids[1:]
