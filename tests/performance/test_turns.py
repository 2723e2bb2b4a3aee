"""Who is timed when, and what comes of it."""

from collections.abc import Callable

import pytest

from snapexport.bench.floors import Rates, Work
from tools.performance import turns
from tools.performance.affine import Affine
from tools.performance.turns import Case


def cases(log: list[str], seconds: dict[str, float]) -> list[Case]:
    def timed(name: str) -> Callable[[], float]:
        return lambda: log.append(name) or seconds[name]

    return [
        Case({"name": "a"}, timed("a"), times=2),
        Case({"name": "b"}, timed("b"), warm=False, work=Work(nbytes=30, operations=10)),
    ]


def test_every_second_round_goes_backwards_after_a_warm_up_that_is_not_told() -> None:
    log: list[str] = []
    everyone = cases(log, {"a": 1.0, "b": 2.0})
    taken = list(turns.take_turns(everyone, rounds=2))
    assert log == ["a", "a", "a", "b", "b", "a", "a"]
    assert taken == [(0, 1.0), (0, 1.0), (1, 2.0), (1, 2.0), (0, 1.0), (0, 1.0)]
    assert turns.steps(everyone, 2) == len(taken)


def test_rows_have_medians_floors_and_ratios_of_what_was_timed() -> None:
    everyone = cases([], {})
    rows = turns.rows(everyone, {1: [2.0, 8.0, 4.0]}, Rates(nbytes=15.0, operations=10.0))
    (row,) = rows
    assert row["name"] == "b" and row["seconds"]["median"] == 4.0
    assert row["floor"]["seconds"] == 2.0 and row["floor"]["bound"] == "memory"
    assert row["ratio"] == 2.0


def test_rates_are_amounts_by_median_seconds_and_none_before_both_are_there() -> None:
    probes = [
        Case({"probe": "bandwidth", "amount": 100}, lambda: 0.0),
        Case({"probe": "matmul", "amount": 60}, lambda: 0.0),
    ]
    assert turns.rates(probes, {0: [1.0, 2.0, 4.0]}) is None
    assert turns.rates(probes, {0: [1.0, 2.0, 4.0], 1: [3.0]}) == Rates(50.0, 20.0)


def test_a_prompt_is_the_sum_of_its_chunks() -> None:
    pasts = [0, 100, 400]
    line = Affine.through(pasts, [1.0 + 0.01 * past for past in pasts])
    assert line.at(200) == pytest.approx(3.0)
    # 1 + 2 + 3 + 4
    assert line.prompt(400, chunk=100) == pytest.approx(10.0)


def test_short_chunks_weigh_as_much_as_long_ones() -> None:
    line = Affine.through([0, 1000, 2000], [1.0, 11.0, 31.0])
    assert abs(line.start - 1.0) < 0.3
