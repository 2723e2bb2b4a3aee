"""A system and a clock without a model: actions take known times on the fake clock."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from snapexport.bench.costs import Costs, Weights
from snapexport.bench.systems import SystemSpec


@dataclass
class Clock:
    """A clock that moves only by assignment to `now`."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class FakeSystem:
    """`per_token` seconds for each token of a prompt, `per_step` and `per_slot` for a step."""

    clock: Clock
    name: str
    log: list[tuple[object, ...]]
    per_token: float = 0.0
    per_step: float = 0.0
    per_slot: float = 0.0
    prompts: list[list[int]] = field(default_factory=list)

    def prefill(self, slot: int, prompt: Sequence[int]) -> None:
        self.log.append((self.name, "prefill", slot, len(prompt)))
        self.prompts.append(list(prompt))
        self.clock.now += self.per_token * len(prompt)

    def decode(self, active: int) -> None:
        self.log.append((self.name, "decode", active))
        self.clock.now += self.per_step + self.per_slot * active


def spec(
    name: str = "one", batch: int = 4, longest_prompt: int = 1000, positions: int = 2000
) -> SystemSpec:
    def unloadable() -> Any:
        raise AssertionError("this system must not be loaded")

    costs = Costs(Weights(nbytes=1, elements=1, output=1), (), L_obs=1)
    return SystemSpec(name, unloadable, batch, longest_prompt, positions, costs, 100)
