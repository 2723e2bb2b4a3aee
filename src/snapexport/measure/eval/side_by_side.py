"""Runs documents' prompts through the full cache and every other one, and compares what follows.

Every cache is forced along the continuations of documents, and compared token by token. Answers to
instructions are each system's own, up to where they part; two that part may still say the same.
Each prompt is prefilled once for all systems; longer beginnings of one passage go on from the
shorter ones' prefill.
"""

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from snapexport.measure.eval.records import Answer, Continuation
from snapexport.measure.eval.requests import Instruction, Prompt
from snapexport.measure.eval.systems import System
from snapexport.runtime.engine.executor import Executor
from snapexport.runtime.requests.sampling import log_softmax

Rows = NDArray[np.float32]
Tokens = list[int]


class HasPrompt(Protocol):
    """A prompt to prefill. length: as asked for; caches with a slot for each token are left out."""

    @property
    def length(self) -> int: ...

    @property
    def prompt_ids(self) -> tuple[int, ...]: ...

    @property
    def key(self) -> tuple[Any, ...]:
        """Values that distinguish it from the other prompts of a measurement."""


P = TypeVar("P", bound=HasPrompt)
Written = TypeVar("Written")
Kept = TypeVar("Kept")
Executors = Mapping[System, Executor]


def is_measured(system: System, prompt: HasPrompt) -> bool:
    """Whether a system's cache is the full one, or drops some of the prompt's tokens."""
    return not system.geometry.compresses or system.slots < prompt.length


def compare(
    prompts: Sequence[P],
    executors: Executors,
    done: Collection[Hashable],
    decode: Callable[[Executor, Sequence[P], Sequence[int]], Sequence[Written]],
    record: Callable[[System, P, Written, Written], Kept],
) -> Iterator[Kept]:
    """Records of every prompt and system, but those in `done`. executors: of several systems one
    has the full cache.

    A cache with a slot for each token of the prompt is left out: it drops nothing.
    done: (system, slots, *key of the prompt). decode: from the likeliest first tokens of prompts in
    batch slots to what each prompt's system wrote. record: of a system's own and the full cache's.
    """
    # A single system is its own reference.
    full = min(executors, key=lambda system: system.geometry.compresses)
    batch = executors[full].limits.batch
    for start in range(0, len(prompts), batch):
        group = prompts[start : start + batch]
        pending = {system: _pending(system, group, done) for system in executors}
        if not any(pending.values()):
            continue
        first = _prefill(group, {**pending, full: group}, executors)
        reference = decode(executors[full], group, first[full])
        for system in filter(pending.get, executors):
            is_full = system == full
            own = reference if is_full else decode(executors[system], group, first[system])
            for prompt, *pair in zip(group, own, reference, strict=True):
                if prompt in pending[system]:
                    yield record(system, prompt, *pair)


def _pending(system: System, group: Sequence[P], done: Collection[Hashable]) -> list[P]:
    return [
        prompt
        for prompt in group
        if is_measured(system, prompt) and (system.name, system.slots, *prompt.key) not in done
    ]


def _prefill(
    group: Sequence[P], wanted: Mapping[System, Sequence[P]], executors: Executors
) -> dict[System, list[int]]:
    """Take each prompt into the same batch slot of every system that wants it.

    Returns the likeliest first tokens by batch slot, 0 where nothing was wanted.
    """
    first = {system: [0] * len(group) for system in executors}
    for slot, prompt in enumerate(group):
        for system, executor in executors.items():
            if prompt in wanted[system]:
                logits = executor.prefill_prompt(slot, prompt.prompt_ids).logits
                first[system][slot] = int(logits.argmax())
    return first


def measure_continuations(
    prompts: Sequence[Prompt], executors: Executors, done: Collection[Hashable]
) -> Iterator[Continuation]:
    """Records of every prompt and system, but those in `done`."""
    return compare(prompts, executors, done, _log_probabilities, _continuation)


def _log_probabilities(executor: Executor, group: Sequence[Prompt], _: object) -> list[Rows]:
    """float32 [tokens, V] of each prompt, while the continuations are forced."""
    forced = np.array([prompt.continuation_ids for prompt in group], np.int64)
    lengths = np.array([prompt.length for prompt in group], np.int64)
    found = [
        log_softmax(executor.decode(forced[:, step], lengths + step, lengths).logits)
        for step in range(forced.shape[1] - 1)
    ]
    return list(np.stack(found, axis=1, dtype=np.float32, casting="same_kind"))


def _continuation(system: System, prompt: Prompt, own: Rows, reference: Rows) -> Continuation:
    wanted = np.array(prompt.continuation_ids[1:])[:, None]
    divergence = (np.exp(reference) * (reference - own)).sum(-1)
    return Continuation(
        system.name,
        system.slots,
        *prompt.key,
        len(wanted),
        nll=-float(np.take_along_axis(own, wanted, -1).mean()),
        full_nll=-float(np.take_along_axis(reference, wanted, -1).mean()),
        kl=float(divergence.mean()),
        agreement=float((own.argmax(-1) == reference.argmax(-1)).mean()),
    )


def measure_answers(
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

    return compare(prompts, executors, done, _write_answers, record)


def _write_answers(
    executor: Executor, group: Sequence[Instruction], first: Sequence[int]
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
