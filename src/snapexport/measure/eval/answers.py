"""Measures where a cache's greedy answers part from the full cache's.

An instruction follows the beginning of a passage, in the chat template if the build has one. Every
system writes its own answer; two answers that part may still say the same.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from snapexport.measure.eval.documents import Passage
from snapexport.measure.eval.sample import Frame, Text, continuing_ids
from snapexport.measure.eval.side_by_side import Executors, full_of, groups, is_measured, prefill
from snapexport.measure.eval.systems import System
from snapexport.runtime.engine.batch_executor import BatchExecutor

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
    done: frozenset[Key],
) -> Iterator[Answer]:
    """Records of every prompt and system, but those in `done`. executors: one has the full cache.

    A cache with a slot for each token of the text is left out: it drops nothing.
    """
    full = full_of(executors)
    for group in groups(prompts, executors):
        pending = {one: _pending(one, group, done) for one in executors}
        if any(pending.values()):
            first = prefill(group, {**pending, full: group}, executors)
            yield from _compared(group, pending, executors, first, tokenizer)


def _compared(
    group: Sequence[Instruction],
    pending: Mapping[System, Sequence[Instruction]],
    executors: Executors,
    first: Mapping[System, Sequence[int]],
    tokenizer: Tokenizer,
) -> Iterator[Answer]:
    """Let every system that has pending prompts write its answers."""
    full = full_of(executors)
    reference = _written(executors[full], group, first[full])
    for system in filter(pending.get, executors):
        own = reference
        if system != full:
            own = _written(executors[system], group, first[system])
        for prompt, ids, full_ids in zip(group, own, reference, strict=True):
            if prompt in pending[system]:
                yield _record(system, prompt, ids, full_ids, tokenizer.decode(ids))


def _pending(
    system: System, group: Sequence[Instruction], done: frozenset[Key]
) -> list[Instruction]:
    return [
        prompt
        for prompt in group
        if is_measured(system, prompt)
        and (system.name, system.slots, prompt.length, prompt.passage, prompt.instruction)
        not in done
    ]


def _written(
    executor: BatchExecutor, group: Sequence[Instruction], first: Sequence[int]
) -> list[list[int]]:
    """Greedy tokens of each batch slot, beginning with `first`. All go on until the last ends."""
    ends = executor.limits.eos_token_id
    lengths = np.array([len(prompt.prompt_ids) for prompt in group], np.int64)
    last = np.array(first, np.int64)
    rows = [[token] for token in first]
    for step in range(max(prompt.max_tokens for prompt in group) - 1):
        if all(row[-1] in ends for row in rows):
            break
        last = executor.decode(last, lengths + step, lengths).logits.argmax(-1)
        for row, token in zip(rows, last.tolist(), strict=True):
            if row[-1] not in ends:
                row.append(token)
    return [list(takewhile(lambda token: token not in ends, row)) for row in rows]


def _record(
    system: System, prompt: Instruction, ids: list[int], full_ids: list[int], text: str
) -> Answer:
    pairs = takewhile(lambda pair: pair[0] == pair[1], zip(ids, full_ids, strict=False))
    return Answer(
        system.name,
        system.slots,
        prompt.length,
        prompt.passage,
        prompt.instruction,
        len(ids),
        len(full_ids),
        sum(1 for _ in pairs),
        text,
    )


def results(records: Sequence[Answer]) -> list[dict[str, Any]]:
    """A row for each system, slots and length, over passages and instructions."""
    rows: dict[tuple[str, int, int], list[Answer]] = {}
    for one in records:
        rows.setdefault((one.system, one.slots, one.length), []).append(one)
    return [
        dict(zip(("system", "slots", "length"), key, strict=True)) | _summary(group)
        for key, group in rows.items()
    ]


def _summary(group: Sequence[Answer]) -> dict[str, Any]:
    """equal_quartiles: of the tokens before the first that differs. share: of the full cache's.

    equal: of each answer, by passage and instruction. whole: share of the answers that are the
    full cache's. An answer that never parts counts with its length.
    """
    group = sorted(group, key=lambda one: (one.passage, one.instruction))
    shares = [one.equal / one.full_tokens if one.full_tokens else 1.0 for one in group]
    error = statistics.stdev(shares) / math.sqrt(len(shares)) if len(shares) > 1 else None
    quartiles = np.percentile([one.equal for one in group], (25, 50, 75))
    return {
        "answers": len(group),
        "tokens": round(statistics.fmean(one.tokens for one in group), 1),
        "equal_quartiles": [round(float(one), 2) for one in quartiles],
        "share": round(statistics.fmean(shares), 5),
        "share_stderr": None if error is None else round(error, 5),
        "whole": round(statistics.fmean(one.is_whole for one in group), 5),
        "equal": [one.equal for one in group],
    }
