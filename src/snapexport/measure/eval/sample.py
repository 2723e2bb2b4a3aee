"""Turns the text of a task into a sample: token ids, and how an answer is scored.

A context, a question and a reference are encoded separately, so that the same ids can be prefilled
together or one after the other. Knows no task's wording, no cache and no model.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Self

from tokenizers import Tokenizer

from snapexport.compare.documents import Ids, opening_ids
from snapexport.errors import UserError

FIRST_GUESS = 64
"""Lines of noise: enough to estimate what one costs, and quick to encode."""


@dataclass(frozen=True)
class Text:
    """A sample before it is encoded: a prompt of two parts, and the answer of a perfect model.

    needle: the first one, a part of the context.
    answers: strings that must occur in the output, in any order and any case.
    reference: the whole text that a perfect model writes right after the question.
    in_chat: whether the chat template is around it, with its special tokens as text.
    """

    context: str
    needle: str
    question: str
    answers: tuple[str, ...]
    reference: str
    in_chat: bool = field(default=False, kw_only=True)

    def prompt_tokens(self, tokenizer: Tokenizer) -> int:
        """Tokens of context and question together."""
        question = continuing_ids(tokenizer, self.context, self.question)
        return len(self.opening(tokenizer)) + len(question)

    def opening(self, tokenizer: Tokenizer) -> Ids:
        """The context's ids. A template writes the special tokens itself."""
        encode = _plain_ids if self.in_chat else opening_ids
        return encode(tokenizer, self.context)


Frame = Callable[[Text], Text]
"""Puts a text into the form in which the model is asked."""


def as_it_is(text: Text) -> Text:
    """The frame of a model that only continues texts."""
    return text


@dataclass(frozen=True)
class Sample(Text):
    """An encoded text.

    depth: where the first needle begins, as a share of the context's characters.
    context_ids: begin with the tokenizer's special tokens (BOS); the other ids have none.
    """

    task: str
    depth: float
    context_ids: Ids
    question_ids: Ids
    reference_ids: Ids

    @classmethod
    def of(cls, text: Text, task: str, tokenizer: Tokenizer) -> Self:
        """Encode a text. Raises UserError."""
        sample = cls(
            **vars(text),
            task=task,
            depth=text.context.index(text.needle) / len(text.context),
            context_ids=text.opening(tokenizer),
            question_ids=continuing_ids(tokenizer, text.context, text.question),
            reference_ids=continuing_ids(tokenizer, text.question, text.reference),
        )
        for part in ("context", "question", "reference"):
            ids, text_of_part = getattr(sample, f"{part}_ids"), getattr(sample, part)
            if not _reads_back(tokenizer, ids, text_of_part, special=text.in_chat):
                raise _spelling_error(tokenizer, task)
        return sample

    @property
    def stop(self) -> tuple[str, ...]:
        """A text goes on after the answer's line; a chat's answer ends by itself."""
        return () if self.in_chat else ("\n",)

    @property
    def max_tokens(self) -> int:
        """Tokens to generate: the reference, a quarter more, and room for a few words.

        A chat's answer may repeat the question in every line of a list.
        """
        if self.in_chat:
            return len(self.reference_ids) * 2 + 32
        return len(self.reference_ids) * 5 // 4 + 16

    def score(self, text: str) -> float:
        """The share of the answers that occur in the text (RULER's string_match_all)."""
        written = text.lower()
        return sum(answer.lower() in written for answer in self.answers) / len(self.answers)

    def score_first(self, token_ids: Sequence[int]) -> bool:
        """Whether the first token is right. Prefill sees the whole prompt: it gives it away."""
        return tuple(token_ids[:1]) == self.reference_ids[:1]

    def score_rest(self, token_ids: Sequence[int]) -> bool:
        """Whether all tokens after the first equal the reference's, each at its place.

        `token_ids` begin with the first token. A reference of one token always passes.
        """
        return tuple(token_ids[1 : len(self.reference_ids)]) == self.reference_ids[1:]


class Task(ABC):
    """Makes samples from nothing but a seed."""

    name: str

    def sample(
        self,
        tokenizer: Tokenizer,
        seed: int,
        tokens: int,
        depth: float | None = None,
        answer_tokens: int = 0,
        frame: Frame = as_it_is,
    ) -> Sample:
        """The sample of a seed: equal arguments give equal samples. Raises UserError.

        tokens: the most that context and question have together; noise fills it.
        depth: the first needle's place as a share of the context; by default the seed decides.
        answer_tokens: least length of the reference, for `long_answer`; other tasks ignore it.
        frame: such as the chat template's, whose tokens count.
        """
        if depth is not None and not 0 <= depth <= 1:
            raise UserError(f"a depth of {depth} is not a share of the context", "use 0 to 1")
        plain = self.answering(tokenizer, seed, answer_tokens).texts(seed, depth)

        def text(noise: int) -> Text:
            return frame(plain(noise))

        require_spells(tokenizer, self)

        def prompt_tokens(noise: int) -> int:
            return text(noise).prompt_tokens(tokenizer)

        if (least := prompt_tokens(0)) > tokens:
            raise UserError(
                f"a sample of the task '{self.name}' does not fit into {tokens} tokens",
                f"use {least} tokens or more",
            )
        noise = most(prompt_tokens, limit=tokens, guess=self.guess(tokens))
        return Sample.of(text(noise), self.name, tokenizer)

    def answering(self, tokenizer: Tokenizer, seed: int, answer_tokens: int) -> "Task":
        """The task with a reference of that length, where it can have one. Raises UserError."""
        return self

    @abstractmethod
    def texts(self, seed: int, depth: float | None) -> Callable[[int], Text]:
        """The text of a seed by its amount of noise, which 0 makes as short as it can be."""

    def guess(self, tokens: int) -> int:
        """A guess of the amount of noise that fits: the search begins with it."""
        return FIRST_GUESS

    @abstractmethod
    def noise(self, seed: int) -> Iterator[str]:
        """Endless lines, each with its newline, for the places between the needles."""

    @abstractmethod
    def excerpt(self) -> str:
        """A few lines of the task with everything in them that a tokenizer must spell."""


TASKS: dict[str, Task] = {}
"""Every task by name. tasks.py fills it; import it from there."""


def require_spells(tokenizer: Tokenizer, task: Task) -> None:
    """Raise a UserError for a tokenizer that can't spell a task: its counts would mean nothing."""
    if not _spells(tokenizer, task.excerpt()):
        raise _spelling_error(tokenizer, task.name)


def continuing_ids(tokenizer: Tokenizer, before: str, text: str) -> Ids:
    """The ids of `text` after the last line of `before`.

    A tokenizer like SentencePiece's begins a text of its own with a space: encoding both and
    cutting avoids it. Where one token spans the cut, the ids are those of the text on its own.
    """
    anchor = before[before.rstrip("\n").rfind("\n") + 1 :]
    head = _plain_ids(tokenizer, anchor)
    whole = _plain_ids(tokenizer, anchor + text)
    if whole[: len(head)] == head:
        return whole[len(head) :]
    return _plain_ids(tokenizer, text)


def most(count: Callable[[int], int], limit: int, guess: int) -> int:
    """The largest n >= 0 for which count(n) <= limit. count grows, and count(0) fits.

    Every call may encode a whole prompt. So the search interpolates, beginning at `guess`: noise
    costs about the same everywhere.
    """
    least = count(0)
    low, low_count = 0, least
    high = high_count = 0
    n = max(1, guess)
    while low_count < limit and high != low + 1:
        tried = count(n)
        if tried <= limit:
            low, low_count = n, tried
        else:
            high, high_count = n, tried
        if high:  # where a straight line between the two known points meets the limit
            between = low + (limit - low_count) * (high - low) // (high_count - low_count)
            n = min(max(between, low + 1), max(high - 1, low + 1))
        else:  # one more than the mean cost so far promises, to meet a length that does not fit
            n = low + 1 + (limit - low_count) * low // max(1, low_count - least)
    return low


def _spells(tokenizer: Tokenizer, text: str) -> bool:
    return _reads_back(tokenizer, _plain_ids(tokenizer, text), text)


def _reads_back(tokenizer: Tokenizer, ids: Ids, text: str, special: bool = False) -> bool:
    """Whether ids decode to a text; a decoder may add or drop spaces before the first word.

    special: whether special tokens are part of the text.
    """
    decoded = str(tokenizer.decode(list(ids), skip_special_tokens=not special))
    return decoded.lstrip() == text.lstrip()


def _plain_ids(tokenizer: Tokenizer, text: str) -> Ids:
    return tuple(tokenizer.encode(text, add_special_tokens=False).ids)


def _spelling_error(tokenizer: Tokenizer, task: str) -> UserError:
    names = [name for name, one in TASKS.items() if _spells(tokenizer, one.excerpt())]
    return UserError(
        f"the tokenizer can't spell the task '{task}': its text changes by encoding and decoding",
        f"tasks it can spell: {', '.join(names)}"
        if names
        else "it can spell none: check that it is the checkpoint's own tokenizer.json",
    )
