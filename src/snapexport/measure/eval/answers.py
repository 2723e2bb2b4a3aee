"""Measures where a cache's greedy answers part from the full cache's.

An instruction follows the beginning of a passage, in the chat template if the build has one. Every
system writes its own answer; two answers that part may still say the same.
"""

from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from snapexport.measure.eval.documents import Passage
from snapexport.measure.eval.sample import Frame, Text, continuing_ids
from snapexport.measure.eval.side_by_side import Executors, compared
from snapexport.measure.eval.summaries import CACHE, mean, rows, stderr
from snapexport.measure.eval.systems import System
from snapexport.runtime.engine.batch_executor import BatchExecutor

Tokens = list[int]
Key = tuple[str, int, int, str, str]


@dataclass(frozen=True)
class Answer:
    """One system's answer to an instruction after `length` tokens of a passage.

    tokens, full_tokens: of this answer and of the full cache's, without the token that ends it.
    equal: tokens before the first one that differs. text: this answer.
    """

    system: str
    slots: int
    length: int
    passage: str
    instruction: str
    tokens: int
    full_tokens: int
    equal: int
    text: str

    @property
    def key(self) -> Key:
        """System and prompt: a measurement has one record for each key."""
        return self.system, self.slots, self.length, self.passage, self.instruction

    @property
    def is_whole(self) -> bool:
        """Whether the full cache writes the same from the first token to the last."""
        return self.equal == self.tokens == self.full_tokens


@dataclass(frozen=True)
class Instruction:
    """A text with an instruction after it. prompt_ids: both, and the template around them."""

    passage: str
    length: int
    instruction: str
    prompt_ids: tuple[int, ...]
    max_tokens: int

    @property
    def key(self) -> tuple[int, str, str]:
        """Length, passage and instruction."""
        return self.length, self.passage, self.instruction


def instruct(
    passage: Passage,
    length: int,
    instruction: str,
    max_tokens: int,
    tokenizer: Tokenizer,
    frame: Frame,
) -> Instruction:
    """The prompt for the first `length` tokens of a passage."""
    lines, newline, last = instruction.rpartition("\n")  # a frame takes a question of one line
    context = tokenizer.decode(list(passage.ids[:length])) + "\n\n" + lines + newline
    text = frame(Text(context, "", last, (), ""))
    ids = text.opening(tokenizer) + continuing_ids(tokenizer, text.context, text.question)
    return Instruction(passage.name, length, instruction, ids, max_tokens)


def measure(
    prompts: Sequence[Instruction],
    executors: Executors,
    tokenizer: Tokenizer,
    done: Collection[Hashable],
) -> Iterator[Answer]:
    """Records of every prompt and system, but those in `done`."""

    def record(system: System, prompt: Instruction, ids: Tokens, full_ids: Tokens) -> Answer:
        equal = takewhile(lambda pair: pair[0] == pair[1], zip(ids, full_ids, strict=False))
        counts = len(ids), len(full_ids), len(list(equal))
        return Answer(system.name, system.slots, *prompt.key, *counts, tokenizer.decode(ids))

    return compared(prompts, executors, done, _written, record)


def _written(
    executor: BatchExecutor, group: Sequence[Instruction], first: Sequence[int]
) -> list[Tokens]:
    """Greedy tokens of each batch slot, beginning with `first`. All go on until the last ends."""
    ends = executor.limits.eos_token_id
    lengths = np.array([len(prompt.prompt_ids) for prompt in group], np.int64)
    last = np.array(first, np.int64)
    written = [[token] for token in first]
    for step in range(max(prompt.max_tokens for prompt in group) - 1):
        if all(row[-1] in ends for row in written):
            break
        last = executor.decode(last, lengths + step, lengths).logits.argmax(-1)
        for row, token in zip(written, last.tolist(), strict=True):
            if row[-1] not in ends:
                row.append(token)
    return [list(takewhile(lambda token: token not in ends, row)) for row in written]


def results(records: Iterable[Answer]) -> list[dict[str, Any]]:
    """A row for each system, slots and length, over passages and instructions."""
    return rows(records, CACHE, _summary)


def _summary(group: Sequence[Answer]) -> dict[str, Any]:
    """equal_quartiles: of the tokens before the first that differs. share: of the full cache's.

    equal: of each answer, by passage and instruction. whole: share of the answers that are the
    full cache's. An answer that never parts counts with its length.
    """
    group = sorted(group, key=lambda one: (one.passage, one.instruction))
    shares = [answer.equal / answer.full_tokens if answer.full_tokens else 1.0 for answer in group]
    quartiles = np.percentile([answer.equal for answer in group], (25, 50, 75))
    return {
        "answers": len(group),
        "tokens": mean((answer.tokens for answer in group), digits=1),
        "equal_quartiles": [round(float(quartile), 2) for quartile in quartiles],
        "share": mean(shares),
        "share_stderr": stderr(shares),
        "whole": mean(answer.is_whole for answer in group),
        "equal": [answer.equal for answer in group],
    }
