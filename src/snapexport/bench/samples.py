"""What was measured, one by one."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Measure = Literal["prefill", "decode", "hand_over", "vote", "bandwidth", "matmul"]
"""prefill: seconds from a prompt to its first token. decode: seconds of a step. hand_over: seconds
of compress.onnx; vote: of its part that chooses. bandwidth: bytes, matmul: operations a second."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement. context, batch: 0 where they mean nothing."""

    measure: Measure
    value: float
    contender: str = ""
    context: int = 0
    batch: int = 0


@dataclass(frozen=True, slots=True)
class Place:
    """Where samples belong together."""

    contender: str
    context: int
    batch: int


def gathered(samples: Iterable[Sample], measure: Measure) -> dict[Place, list[float]]:
    """The values of one measure by their place, in the order of the first of each."""
    groups: dict[Place, list[float]] = defaultdict(list)
    for one in samples:
        if one.measure == measure:
            groups[Place(one.contender, one.context, one.batch)].append(one.value)
    return dict(groups)
