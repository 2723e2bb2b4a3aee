"""From a task's text to a sample in token ids."""

from dataclasses import dataclass

from tokenizers import Tokenizer

from snapexport.contract.errors import UserError
from snapexport.eval.tasks.sample import Sample
from snapexport.eval.tasks.spelling import (
    continuing_ids,
    opening_ids,
    reads_back,
    spells,
)
from snapexport.eval.tasks.task import Task


@dataclass(frozen=True)
class Text:
    """A sample before it is tokenised: context, question and what answers it."""

    context: str
    question: str
    answers: tuple[str, ...]
    reference: str


def prompt_tokens(tokenizer: Tokenizer, text: Text) -> int:
    """Tokens of context and question together."""
    context = opening_ids(tokenizer, text.context)
    return len(context) + len(continuing_ids(tokenizer, text.context, text.question))


def written(tokenizer: Tokenizer, task: str, text: Text, needle: str) -> Sample:
    """The sample of a text whose first needle is `needle`. Raises UserError."""
    sample = Sample(
        task=task,
        context=text.context,
        question=text.question,
        answers=text.answers,
        reference=text.reference,
        depth=text.context.index(needle) / len(text.context),
        context_ids=opening_ids(tokenizer, text.context),
        question_ids=continuing_ids(tokenizer, text.context, text.question),
        reference_ids=continuing_ids(tokenizer, text.question, text.reference),
    )
    _require_reads_back(tokenizer, sample)
    return sample


def require_spells(tokenizer: Tokenizer, task: Task) -> None:
    """Refuse early a tokenizer that can't spell a task: its counts would mean nothing."""
    if not spells(tokenizer, task.excerpt()):
        raise _misspelled(tokenizer, task.name)


def _require_reads_back(tokenizer: Tokenizer, sample: Sample) -> None:
    parts = (
        (sample.context_ids, sample.context),
        (sample.question_ids, sample.question),
        (sample.reference_ids, sample.reference),
    )
    if not all(reads_back(tokenizer, ids, text) for ids, text in parts):
        raise _misspelled(tokenizer, sample.task)


def _misspelled(tokenizer: Tokenizer, task: str) -> UserError:
    return UserError(
        f"the tokenizer can't spell the task '{task}': its text, encoded and decoded, is another",
        _spelled_tasks(tokenizer),
    )


def _spelled_tasks(tokenizer: Tokenizer) -> str:
    # The registry imports the tasks, and they import this module.
    from snapexport.eval.tasks.registry import TASKS

    names = [name for name, task in TASKS.items() if spells(tokenizer, task.excerpt())]
    if names:
        return f"tasks it can spell: {', '.join(names)}"
    return "it can spell none: see whether it is the checkpoint's own tokenizer.json"
