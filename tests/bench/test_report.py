"""From samples to numbers that a person compares."""

import json
from typing import Any

from snapexport.bench.costs import Costs, LayerCosts
from snapexport.bench.memory import Memory
from snapexport.bench.options import BenchOptions
from snapexport.bench.plan import Plan
from snapexport.bench.report import summed_up
from snapexport.bench.samples import Sample
from snapexport.bench.weights import Weights
from snapexport.contract.geometry import LayerGeometry
from tests.bench.fakes import entrant

COSTS = Costs(
    Weights(nbytes=1000, elements=200, output=50),
    (LayerCosts(LayerGeometry(2, 6, 4), key=8, value=8, slot=16, pair=16, window=0),),
    L_obs=3,
)
OWN, PEER = entrant("own", costs=COSTS), entrant("peer")
PLAN = Plan.of(BenchOptions(contexts=(100,), batches=(2, 1), decode_steps=4), [OWN, PEER])
RATES = [Sample("bandwidth", rate) for rate in (1000.0, 3000.0, 2000.0)] + [Sample("matmul", 1e9)]


def report(*samples: Sample, memory: dict[str, Memory] | None = None) -> dict[str, Any]:
    found = summed_up(samples, PLAN, [OWN, PEER], memory or {})
    assert json.loads(json.dumps(found)) == found
    return found


def test_nothing_measured_is_an_empty_report() -> None:
    assert report() == {"rates": {}, "prefill": [], "decode": [], "hand_over": [], "memory": []}


def test_prefill_has_its_rate_and_its_floor_from_the_median_rates() -> None:
    seconds = [Sample("prefill", value, "own", 100) for value in (4.0, 5.0, 9.0)]
    (row,) = report(*RATES, *seconds)["prefill"]
    assert row["tokens_per_second"] == 20
    assert row["seconds"] == {"samples": 3, "min": 4, "q1": 4.5, "median": 5, "q3": 7, "max": 9}
    nbytes = 1000 + 16 * 100
    assert row["floor"] == {
        "seconds": nbytes / 2000,
        "bound": "memory",
        "bytes": nbytes,
        "operations": 2 * (100 * 150 + 50) + 16 * 5050,
    }
    assert row["ratio"] == round(5 / (nbytes / 2000), 5)


def test_a_decode_row_counts_the_tokens_of_all_slots() -> None:
    steps = [Sample("decode", 0.5, "own", 100, batch) for batch in (2, 1)]
    two, one = report(*RATES, *steps)["decode"]
    assert (two["batch"], two["tokens_per_second"]) == (2, 4)
    assert (one["batch"], one["tokens_per_second"]) == (1, 2)
    assert two["floor"]["bytes"] == 1000 + 2 * 16 * 13
    assert one["floor"]["bytes"] == 1000 + 16 * 13


def test_without_known_costs_or_rates_there_is_no_floor() -> None:
    (peer,) = report(*RATES, Sample("decode", 0.5, "peer", 100, 1))["decode"]
    (unprobed,) = report(Sample("decode", 0.5, "own", 100, 1))["decode"]
    for row in (peer, unprobed):
        assert row["floor"] is None and row["ratio"] is None
        assert row["seconds"]["median"] == 0.5


def test_the_hand_over_is_a_share_of_prefill_and_has_two_parts() -> None:
    samples = [
        Sample("prefill", 10.0, "own", 100),
        Sample("hand_over", 0.5, "own", 100),
        Sample("vote", 0.125, "own", 100),
    ]
    (row,) = report(*RATES, *samples)["hand_over"]
    assert row["share_of_prefill"] == 0.05
    assert (row["vote_seconds"], row["moving_seconds"]) == (0.125, 0.375)
    (unsplit,) = report(*RATES, *samples[:2])["hand_over"]
    assert unsplit["vote_seconds"] is None and unsplit["moving_seconds"] is None


def test_memory_is_beside_weights_and_caches() -> None:
    used = Memory(empty=10, loaded=20, peak=2200, anonymous_loaded=5, anonymous=6)
    own, peer = report(memory={"own": used, "peer": used})["memory"]
    assert own["floor"] == {"bytes": 1100}
    assert own["ratio"] == 2
    assert (peer["floor"], peer["cache_bytes"]) == (None, 100)
