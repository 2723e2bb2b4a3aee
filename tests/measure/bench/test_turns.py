"""The order of measurements, and the rows that follow from their seconds."""

from collections.abc import Callable

from snapexport.measure.bench import turns
from snapexport.measure.bench.turns import Case, Rates, Work, probe_spreads

PROBES = [
    Case("rates", {"probe": "bandwidth", "amount": 100}, lambda: 0.0),
    Case("rates", {"probe": "matmul", "amount": 60}, lambda: 0.0),
]


def timed(log: list[str], name: str) -> Callable[[], float]:
    return lambda: float(bool(log.append(name)) or len(log))


def test_case_groups_run_backwards_in_every_second_round() -> None:
    log: list[str] = []
    first = [Case("s", {}, timed(log, name), warm=False) for name in "ab"]
    second = [Case("s", {}, timed(log, "c"), times=2, warm=False)]
    taken = list(turns.take_turns([first, second], rounds=2))
    assert "".join(log) == "abcc" + "ccab"
    assert len(taken) == 8


def test_warm_up_runs_each_warm_case_once_and_is_not_counted() -> None:
    log: list[str] = []
    groups = [[Case("s", {}, timed(log, "a"))], [Case("s", {}, timed(log, "b"), warm=False)]]
    taken = list(turns.take_turns(groups, rounds=1))
    assert "".join(log) == "a" + "ab"
    assert [seconds for _, seconds in taken] == [2.0, 3.0]


def test_bench_row_has_median_roofline_ratio_and_rate() -> None:
    case = Case("decode", {"name": "b"}, lambda: 0.0, work=Work(30, 10), tokens=8)
    ((section, row),) = turns.rows({case: [2.0, 8.0, 4.0]}, Rates(15.0, 10.0))
    assert section == "decode" and row["name"] == "b"
    assert row["seconds"]["median"] == 4.0 and row["seconds"]["samples"] == 3
    assert row["roofline"] == {"seconds": 2.0, "bound": "memory", "bytes": 30, "operations": 10}
    assert (row["ratio"], row["tokens_per_second"]) == (2.0, 2.0)


def test_bench_row_without_costs_or_rates_has_no_roofline() -> None:
    known, unknown = Case("s", {}, lambda: 0.0, work=Work(1, 1)), Case("s", {}, lambda: 0.0)
    for case, rates in ((known, None), (unknown, Rates(1.0, 1.0))):
        ((_, row),) = turns.rows({case: [0.5]}, rates)
        assert row["roofline"] is None and row["ratio"] is None
        assert row["seconds"]["median"] == 0.5


def test_probe_rates_are_amounts_by_median_seconds() -> None:
    taken = {PROBES[0]: [1.0, 2.0, 4.0], PROBES[1]: [3.0]}
    assert turns.rates(probe_spreads(taken)) == Rates(50.0, 20.0)
    assert probe_spreads(taken)["bandwidth"]["max"] == 100.0


def test_rates_without_a_matmul_probe_have_only_bandwidth() -> None:
    rates = turns.rates(probe_spreads({PROBES[0]: [2.0]}))
    assert rates == Rates(50.0)
    ((_, row),) = turns.rows({Case("s", {}, lambda: 0.0, work=Work(50, 10**9)): [2.0]}, rates)
    assert row["roofline"]["bound"] == "memory" and row["ratio"] == 2.0
    assert turns.rates({}) is None
