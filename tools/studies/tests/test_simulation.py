"""The simulation of workers and links against closed forms, and what always holds in it."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tools.studies.speed.simulation import Cluster, Request, simulate

GIVEN: dict[str, Any] = {
    "prefill": 1,
    "decode": 1,
    "prefill_seconds": 3.0,
    "prefill_rows": 2,
    "row_bytes": 1000,
    "link": 500.0,
    "slots": 4,
    "landing_rows": 2,
    "step_seconds": lambda active: 0.25,
}


def cluster(**changed: Any) -> Cluster:
    return Cluster(**GIVEN | changed)


def affine(fixed: float, each: float) -> Callable[[int], float]:
    return lambda active: fixed + each * active


seconds = st.floats(0.01, 10)
clusters = st.builds(
    Cluster,
    prefill=st.integers(1, 4),
    decode=st.integers(1, 3),
    prefill_seconds=seconds,
    prefill_rows=st.integers(1, 3),
    row_bytes=st.integers(1, 5000),
    link=st.floats(100, 5000),
    slots=st.integers(1, 5),
    landing_rows=st.integers(1, 3),
    step_seconds=st.builds(affine, seconds, seconds),
    row_seconds=st.floats(0, 2),
    copy_seconds=st.floats(0, 2),
)
arrivals = st.lists(st.floats(0, 50), min_size=1, max_size=40).map(sorted)


@given(one=clusters, tokens=st.integers(1, 30), at=st.floats(0, 100))
@settings(max_examples=60, deadline=None)
def test_one_requests_time_is_the_sum_of_its_parts(one: Cluster, tokens: int, at: float) -> None:
    (found,) = simulate(one, [at], tokens).requests
    parts = one.prefill_seconds + one.row_seconds + one.row_bytes / one.link + one.copy_seconds
    assert found.ttft == pytest.approx(parts)
    decode = (tokens - 1) * one.step_seconds(1)
    assert found.finished - found.arrived == pytest.approx(parts + decode)


@given(row_bytes=st.integers(1, 10_000), link=st.floats(1, 100), count=st.integers(8, 60))
@settings(max_examples=40, deadline=None)
def test_rate_of_a_saturated_link_is_its_rate_over_a_rows_bytes(
    row_bytes: int, link: float, count: int
) -> None:
    transfer = row_bytes / link
    one = cluster(
        prefill_seconds=transfer / 100,
        row_bytes=row_bytes,
        link=link,
        step_seconds=lambda active: transfer / 100,
    )
    found = simulate(one, [0.0] * count, tokens=2)
    assert found.steady_rate == pytest.approx(link / row_bytes)
    assert found.link_seconds == pytest.approx(count * transfer)
    assert 0.95 * count / (count + 1) < found.link_occupancy <= 1


def test_prefill_bound_cluster_finishes_a_request_every_prefill() -> None:
    found = simulate(cluster(prefill_seconds=5.0, prefill=2), [0.0] * 40, tokens=3)
    assert found.steady_rate == pytest.approx(2 / 5.0)


def test_decode_bound_cluster_fills_its_batch_slots() -> None:
    one = cluster(prefill_seconds=0.001, link=1e9, slots=3, step_seconds=affine(0.5, 0.1))
    found = simulate(one, [0.0] * 240, tokens=21)
    assert found.steady_rate == pytest.approx(3 / (20 * 0.8), rel=0.02)


def test_requests_of_one_batch_slot_follow_each_other() -> None:
    one = cluster(slots=1, copy_seconds=0.5)
    ends = [found.finished for found in simulate(one, [0.0] * 3, tokens=101).requests]
    # prefill 3, transfer 2, then for each: copied in 0.5, decoded in 100 * 0.25
    assert ends == pytest.approx([30.5, 56.0, 81.5])


def test_a_row_joins_the_batch_at_the_end_of_a_step() -> None:
    one = cluster(prefill_seconds=1.1, step_seconds=lambda active: 1.0, link=1000.0)
    first, second = simulate(one, [0.0, 0.0], tokens=10).requests
    assert (first.first, second.landed) == (pytest.approx(2.1), pytest.approx(3.2))
    assert second.first == pytest.approx(4.1)
    assert (first.finished, second.finished) == (pytest.approx(11.1), pytest.approx(13.1))


def test_longer_steps_of_a_fuller_batch_slow_all_its_requests() -> None:
    """The second lands a moment after the first has begun a step, and joins after it."""
    one = cluster(prefill=2, decode=1, link=1e12, step_seconds=affine(0, 1.0))
    both = simulate(one, [0.0, 0.0], tokens=5).requests
    # 3 of prefill; a step of 1, three of 2, and a step of 1
    assert [found.finished for found in both] == pytest.approx([10.0, 11.0])


def overlapping(spans: Sequence[tuple[float, float]]) -> int:
    """The most spans at the same time; one may begin where another ends."""
    edges = sorted([(end - 1e-9, -1) for _, end in spans] + [(start, 1) for start, _ in spans])
    now = most = 0
    for _, change in edges:
        now += change
        most = max(most, now)
    return most


def grouped(found: Sequence[Request], label: str) -> list[list[Request]]:
    groups: dict[int, list[Request]] = {}
    for one in found:
        groups.setdefault(getattr(one, label), []).append(one)
    return list(groups.values())


@given(one=clusters, times=arrivals, tokens=st.integers(1, 12))
@settings(max_examples=120, deadline=None)
def test_all_requests_finish_and_no_part_holds_more_than_it_has(
    one: Cluster, times: list[float], tokens: int
) -> None:
    found = simulate(one, times, tokens).requests
    assert len(found) == len(times)
    for r in found:
        steps = [r.arrived, r.began, r.prefilled, r.sent, r.landed, r.first, r.finished]
        assert steps == sorted(steps)
        assert r.sent - r.prefilled >= one.row_seconds - 1e-9
        least = (tokens - 1) * one.step_seconds(1)
        assert r.finished - r.first >= least - 1e-6
    for own in grouped(found, "prefill"):
        assert overlapping([(r.began, r.prefilled) for r in own]) == 1
        assert overlapping([(r.sent, r.landed) for r in own]) == 1
        assert overlapping([(r.began, r.landed) for r in own]) <= one.prefill_rows
    for own in grouped(found, "decode"):
        assert overlapping([(r.sent, r.landed) for r in own]) == 1
        assert overlapping([(r.sent, r.first - one.copy_seconds) for r in own]) <= one.landing_rows
        if tokens > 1:
            assert overlapping([(r.first, r.finished) for r in own]) <= one.slots


@given(one=clusters, tokens=st.integers(2, 12))
@settings(max_examples=60, deadline=None)
def test_no_cluster_is_faster_than_its_slowest_part(one: Cluster, tokens: int) -> None:
    count = 40
    found = simulate(one, [0.0] * count, tokens)
    links = min(one.prefill, one.decode)
    at_least = max(
        count * one.prefill_seconds / one.prefill,
        count * one.transfer_seconds / links,
        count * (tokens - 1) * one.step_seconds(one.slots) / (one.decode * one.slots),
    )
    assert found.seconds >= at_least - 1e-6
    assert 0 < found.link_occupancy <= 1 + 1e-9
