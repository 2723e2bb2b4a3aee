"""Runs prompts through the full cache and through every other one, and compares what they write.

Each prompt is prefilled once for all systems. Knows neither documents nor what is compared.
"""

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from snapexport.measure.eval.systems import System
from snapexport.runtime.engine.batch_executor import BatchExecutor


class HasPrompt(Protocol):
    """What is prefilled. length: as asked for, by which systems are left out."""

    @property
    def length(self) -> int: ...

    @property
    def prompt_ids(self) -> tuple[int, ...]: ...

    @property
    def key(self) -> tuple[Any, ...]:
        """What distinguishes it from the other prompts of a measurement."""


P = TypeVar("P", bound=HasPrompt)
Written = TypeVar("Written")
Kept = TypeVar("Kept")
Executors = Mapping[System, BatchExecutor]


def is_measured(system: System, prompt: HasPrompt) -> bool:
    """Whether a system's cache is the full one, or drops some of the prompt's tokens."""
    return not system.geometry.compresses or system.slots < prompt.length


def compared(
    prompts: Sequence[P],
    executors: Executors,
    done: Collection[Hashable],
    decode: Callable[[BatchExecutor, Sequence[P], Sequence[int]], Sequence[Written]],
    record: Callable[[System, P, Written, Written], Kept],
) -> Iterator[Kept]:
    """Records of every prompt and system, but those in `done`. executors: of several systems one
    has the full cache.

    A cache with a slot for each token of the prompt is left out: it drops nothing.
    done: (system, slots, *key of the prompt). decode: from the likeliest first tokens of prompts in
    batch slots to what each prompt's system wrote. record: of a system's own and the full cache's.
    """
    # A system that is alone is its own reference.
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
