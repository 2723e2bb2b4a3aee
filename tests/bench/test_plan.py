"""What is measured and in which order; and what is refused before anything is loaded."""

from collections import Counter
from typing import Any

import pytest

from snapexport.bench.entrants import entrants
from snapexport.bench.load.options import LoadOptions
from snapexport.bench.options import BenchOptions
from snapexport.bench.plan import Plan
from snapexport.contract.build_directory import Build
from snapexport.contract.errors import UserError
from tests.bench.fakes import entrant


def plan_of(*names: str, **options: Any) -> Plan:
    return Plan.of(BenchOptions(**options), [entrant(name) for name in names or ("one",)])


def test_every_contender_meets_every_context_once_in_every_round() -> None:
    plan = plan_of("one", "two", contexts=(300, 100), repeat=3)
    for round in range(3):
        visits = Counter((v.contender, v.context) for v in plan.visits(round, 2))
        assert visits == {(c, n): 1 for c in (0, 1) for n in (100, 300)}


def test_contenders_take_turns_and_every_second_round_goes_backwards() -> None:
    plan = plan_of("one", "two", contexts=(100, 300))
    there = [(v.context, v.contender) for v in plan.visits(0, 2)]
    assert there == [(100, 0), (100, 1), (300, 0), (300, 1)]
    assert [(v.context, v.contender) for v in plan.visits(1, 2)] == there[::-1]


def test_batches_shrink_because_an_idle_slot_is_lost() -> None:
    assert plan_of(batches=(1, 4, 2), contexts=(8,)).batches == (4, 2, 1)


def test_defaults_come_from_the_tightest_entrant() -> None:
    wide, tight = entrant(batch=4), entrant("full", batch=2, positions=1000)
    plan = Plan.of(BenchOptions(decode_steps=10), [wide, tight])
    assert plan.batches == (2, 1)
    assert plan.contexts == (245, 490, 980)
    alone = Plan.of(BenchOptions(decode_steps=10), [entrant(batch=1)])
    assert (alone.batches, alone.contexts) == ((1,), (250, 500, 1000))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "too many slots": ({"batches": (5,)}, "--batches 5 is more than the 4 slots"),
    "too long": ({"contexts": (1001,)}, "--contexts 1001 is longer than a prompt can be: 1000"),
    "no room": (
        {"contexts": (1000,), "batches": (1,), "decode_steps": 1001},
        "--contexts 1000 leaves no room for 1001 decoded tokens",
    ),
    "no context": ({"contexts": ()}, "--contexts is empty"),
    "a context of nothing": ({"contexts": (0,)}, "--contexts 0 is below 1"),
    "a context twice": ({"contexts": (4, 4)}, "--contexts has 4 twice"),
    "no round": ({"repeat": 0}, "--repeat 0 is below 1"),
    "no step": ({"decode_steps": 0}, "--decode-steps 0 is below 1"),
    "no thread": ({"threads": 0}, "--threads 0 is below 1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_measured_is_refused(name: str) -> None:
    options, message = REFUSED[name]
    with pytest.raises(UserError) as error:
        plan_of(**options)
    assert error.value.message.startswith(message)


BAD_LOADS: dict[str, tuple[dict[str, Any], str]] = {
    "no scheme": ({"server": "localhost:8000"}, "--server localhost:8000 is no HTTP address"),
    "gRPC": ({"server": "grpc://localhost:1"}, "--server grpc://localhost:1 is no HTTP address"),
    "no client": ({"clients": (0,)}, "--clients 0 is below 1"),
    "no token": ({"max_tokens": 0}, "--max-tokens 0 is below 1"),
    "no prompt": ({"prompt_tokens": 0}, "--prompt-tokens 0 is below 1"),
}


@pytest.mark.parametrize("name", BAD_LOADS)
def test_a_load_that_cannot_be_made_is_refused(name: str) -> None:
    options, message = BAD_LOADS[name]
    with pytest.raises(UserError) as error:
        LoadOptions(**{"server": "http://127.0.0.1:8000"} | options)
    assert error.value.message.startswith(message)


def test_a_build_and_its_baseline_are_entrants(tiny_build: Build) -> None:
    own, full = entrants(tiny_build, BenchOptions(baseline=True))
    assert (own.name, full.name) == ("snapstream", "full")
    assert (own.positions, full.positions) == (1024, 64)
    assert own.cache_bytes is not None and full.cache_bytes is not None
    assert own.cache_bytes < full.cache_bytes
    assert [one.name for one in entrants(tiny_build, BenchOptions())] == ["snapstream"]
