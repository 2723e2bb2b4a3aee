"""A contender and a clock without a model: every action takes a known time, and none passes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from snapexport.bench.contender import Contender, Entrant
from snapexport.bench.costs import Costs
from snapexport.bench.samples import Measure


@dataclass
class Clock:
    """Goes on when it is told to."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class FakeContender:
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


@dataclass
class FakeProbe:
    """`amount` in `seconds`."""

    clock: Clock
    measure: Measure
    amount: int
    seconds: float

    def run(self) -> None:
        self.clock.now += self.seconds


@dataclass
class FakePart:
    """One graph of the hand-over; takes `seconds`."""

    clock: Clock
    seconds: float

    def run(self) -> None:
        self.clock.now += self.seconds


@dataclass
class FakeHandOver:
    whole: FakePart
    vote: FakePart | None
    lengths: list[int] = field(default_factory=list)

    def set_length(self, prompt_length: int) -> None:
        self.lengths.append(prompt_length)


def entrant(
    name: str = "one",
    batch: int = 4,
    longest_prompt: int = 1000,
    positions: int = 2000,
    costs: Costs | None = None,
    load: Callable[[], Contender] | None = None,
) -> Entrant:
    def unloadable() -> Contender:
        raise AssertionError("nobody loads this one")

    return Entrant(name, load or unloadable, batch, longest_prompt, positions, costs, 100)
