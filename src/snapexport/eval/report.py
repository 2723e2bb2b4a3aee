"""Outcomes, summed up: how often each cache was right, by task, length, depth and mode."""

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from snapexport.eval.contestants import Contestant
from snapexport.eval.trials import Outcome

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Summary:
    """Means over some outcomes. stderr: standard error of the score's mean; None for one outcome.

    first_token, after_first: shares of the outcomes whose first token, or whose every further
    token, is the reference's.
    """

    samples: int
    score: float
    stderr: float | None
    first_token: float
    after_first: float

    @classmethod
    def of(cls, outcomes: Sequence[Outcome]) -> "Summary":
        """At least one outcome."""
        count = len(outcomes)
        score = sum(one.score for one in outcomes) / count
        return cls(
            count,
            round(score, 4),
            _standard_error([one.score for one in outcomes]),
            round(sum(one.first for one in outcomes) / count, 4),
            round(sum(one.rest for one in outcomes) / count, 4),
        )

    def report(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def _standard_error(scores: Sequence[float]) -> float | None:
    """Of the mean, from the spread of the scores (with Bessel's correction)."""
    if len(scores) < 2:
        return None
    return round(statistics.stdev(scores) / math.sqrt(len(scores)), 4)


def grouped(outcomes: Iterable[Outcome], key: Callable[[Outcome], Key]) -> dict[Key, list[Outcome]]:
    """Outcomes by a key, in the order of their first."""
    groups: dict[Key, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        groups[key(outcome)].append(outcome)
    return dict(groups)


def results(outcomes: Iterable[Outcome]) -> list[dict[str, Any]]:
    """A row for each contestant, budget, mode, task and length, with the scores by depth."""
    fields = ("contestant", "slots", "mode", "task", "length")
    groups = grouped(outcomes, lambda one: tuple(getattr(one, field) for field in fields))
    return [
        dict(zip(fields, key, strict=True)) | Summary.of(group).report() | _by_depth(group)
        for key, group in groups.items()
    ]


def _by_depth(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    depths = grouped(outcomes, lambda one: one.depth)
    return {"by_depth": {str(depth): Summary.of(depths[depth]).score for depth in sorted(depths)}}


def described(contestant: Contestant) -> dict[str, Any]:
    """What a contestant's cache is, for JSON."""
    geometry = contestant.geometry
    layers = [[layer.L_sink, layer.L_recent, layer.K] for layer in geometry.layers]
    return {
        "contestant": contestant.name,
        "slots": contestant.slots,
        "policy": geometry.policy,
        "L_sink_L_recent_K": layers[0] if len(set(map(tuple, layers))) == 1 else layers,
        "L_obs": geometry.L_obs,
        "pool_kernel": geometry.pool_kernel,
        "vote": geometry.vote_options,
        "budget": geometry.budget,
    }
