"""Takes the prompts of a group into every system: each prompt is prefilled once for all.

Knows neither documents nor what is done after prefill.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

from snapexport.measure.eval.systems import System
from snapexport.runtime.engine.batch_executor import BatchExecutor


class HasPrompt(Protocol):
    """What is prefilled. length: as asked for, by which systems are left out."""

    @property
    def length(self) -> int: ...

    @property
    def prompt_ids(self) -> tuple[int, ...]: ...


One = TypeVar("One", bound=HasPrompt)
Executors = Mapping[System, BatchExecutor]


def is_measured(system: System, prompt: HasPrompt) -> bool:
    """Whether a system's cache is the full one, or drops some of the prompt's tokens."""
    return not system.geometry.compresses or system.slots < prompt.length


def full_of(executors: Executors) -> System:
    """The system that every other one is compared with."""
    return next(one for one in executors if not one.geometry.compresses)


def groups(prompts: Sequence[One], executors: Executors) -> Iterator[Sequence[One]]:
    """As many prompts as there are batch slots, in order."""
    batch = executors[full_of(executors)].limits.batch
    return (prompts[start : start + batch] for start in range(0, len(prompts), batch))


def prefill(
    group: Sequence[One], wanted: Mapping[System, Sequence[One]], executors: Executors
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
