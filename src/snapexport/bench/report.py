"""Samples, summed up: spreads, the floor beside each, and the ratio of the two.

Pure arithmetic: the same samples give the same report. Times are in seconds, and ratios of medians.
"""

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from snapexport.bench.contender import Entrant
from snapexport.bench.floors import Floor, Rates, Work
from snapexport.bench.memory import Memory
from snapexport.bench.plan import Plan
from snapexport.bench.samples import Sample, gathered
from snapexport.bench.spread import Spread, rounded

Row = dict[str, Any]


def summed_up(
    samples: Sequence[Sample], plan: Plan, entrants: Sequence[Entrant], memory: dict[str, Memory]
) -> Row:
    """Everything measured so far."""
    rates = _rates(samples)
    by_name = {entrant.name: entrant for entrant in entrants}
    return {
        "rates": _rate_rows(samples),
        "prefill": list(_prefill(samples, by_name, rates)),
        "decode": list(_decode(samples, plan, by_name, rates)),
        "hand_over": list(_hand_over(samples, by_name, rates)),
        "memory": [_memory(by_name[name], one) for name, one in memory.items()],
    }


def _rates(samples: Sequence[Sample]) -> Rates | None:
    """Medians, like everything that they are compared with; None before the first probes."""
    probed = [_values(samples, measure) for measure in ("bandwidth", "matmul")]
    return Rates(*map(statistics.median, probed)) if all(probed) else None


def _rate_rows(samples: Sequence[Sample]) -> Row:
    named = {"bytes_per_second": "bandwidth", "operations_per_second": "matmul"}
    values = {name: _values(samples, measure) for name, measure in named.items()}
    return {name: Spread.of(found).report() for name, found in values.items() if found}


def _values(samples: Sequence[Sample], measure: str) -> list[float]:
    return [one.value for one in samples if one.measure == measure]


def _prefill(
    samples: Sequence[Sample], entrants: dict[str, Entrant], rates: Rates | None
) -> Iterator[Row]:
    """Time to the first token of a request that is alone, by prompt length."""
    for place, seconds in gathered(samples, "prefill").items():
        costs = entrants[place.contender].costs
        work = costs.prefill(place.context) if costs else None
        median = statistics.median(seconds)
        yield {
            "contender": place.contender,
            "context": place.context,
            "tokens_per_second": rounded(place.context / median),
            **timing(seconds, work, rates),
        }


def _decode(
    samples: Sequence[Sample], plan: Plan, entrants: dict[str, Entrant], rates: Rates | None
) -> Iterator[Row]:
    """A step of some active slots, each behind a prompt of the context's length."""
    for place, seconds in gathered(samples, "decode").items():
        costs = entrants[place.contender].costs
        position = place.context + _steps_before(plan, place.batch)
        work = costs.decode(position, place.context, place.batch) if costs else None
        median = statistics.median(seconds)
        yield {
            "contender": place.contender,
            "context": place.context,
            "batch": place.batch,
            "tokens_per_second": rounded(place.batch / median),
            **timing(seconds, work, rates),
        }


def _steps_before(plan: Plan, batch: int) -> int:
    """Tokens decoded since prefill, at the middle step of a batch's turn."""
    return plan.decode_steps * plan.batches.index(batch) + plan.decode_steps // 2


def _hand_over(
    samples: Sequence[Sample], entrants: dict[str, Entrant], rates: Rates | None
) -> Iterator[Row]:
    """The share of compression in prefill; the vote, and the rest, where below zero is noise."""
    prefill, votes = gathered(samples, "prefill"), gathered(samples, "vote")
    for place, seconds in gathered(samples, "hand_over").items():
        costs = entrants[place.contender].costs
        work = costs.hand_over(place.context) if costs else None
        whole = statistics.median(seconds)
        vote = statistics.median(votes[place]) if place in votes else None
        yield {
            "contender": place.contender,
            "context": place.context,
            "share_of_prefill": rounded(whole / statistics.median(prefill[place])),
            "vote_seconds": None if vote is None else rounded(vote),
            "moving_seconds": None if vote is None else rounded(whole - vote),
            **timing(seconds, work, rates),
        }


def timing(seconds: Sequence[float], work: Work | None, rates: Rates | None) -> Row:
    """The spread, the floor and how many times the floor the median is."""
    spread = Spread.of(seconds)
    row: Row = {"seconds": spread.report(), "floor": None, "ratio": None}
    if work is None or rates is None:
        return row
    floor = Floor.of(work, rates)
    return row | {
        "floor": {
            "seconds": rounded(floor.seconds),
            "bound": floor.bound,
            "bytes": work.nbytes,
            "operations": work.operations,
        },
        "ratio": rounded(spread.median / floor.seconds),
    }


def _memory(entrant: Entrant, memory: Memory) -> Row:
    """The floor is what has to be there: weights, and all the caches."""
    row: Row = {"contender": entrant.name, "bytes": memory.report()}
    row |= {"cache_bytes": entrant.cache_bytes, "floor": None, "ratio": None}
    if entrant.costs is None or entrant.cache_bytes is None:
        return row
    floor = entrant.costs.weights.nbytes + entrant.cache_bytes
    return row | {"floor": {"bytes": floor}, "ratio": rounded(memory.peak / floor)}
