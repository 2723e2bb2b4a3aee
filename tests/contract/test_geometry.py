"""Arithmetic of cache slots against a cache that is simulated position by position."""

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.policies import default_pool_kernel, default_ring
from snapexport.contract.records import GeometryRecord
from snapexport.contract.slots import LayerGeometry
from snapexport.contract.vote import Vote
from snapexport.errors import UserError
from snapexport.methods.table import voter_of, voters

layers = st.builds(LayerGeometry, st.integers(0, 5), st.integers(1, 9), st.integers(0, 6))


def simulated(place: LayerGeometry, count: int, length: int) -> dict[int, int]:
    """Positions by cache slot, after `count` were written in turn behind a prompt of `length`."""
    return {place.cache_slot(position, length): position for position in range(count)}


@given(layers, st.integers(1, 60))
def test_source_positions_equal_those_of_writing_token_by_token(
    place: LayerGeometry, length: int
) -> None:
    held, kept = simulated(place, length, length), [99] * place.kept(length)
    sources = place.source_positions(length, kept)
    slots = range(place.cache_slots - len(kept))
    assert sources == [*(held.get(slot, -1) for slot in slots), *kept]


@given(layers, st.integers(1, 60), st.integers(0, 40))
def test_valid_cache_slots_are_a_contiguous_prefix(
    place: LayerGeometry, length: int, more: int
) -> None:
    position = length + more
    written = simulated(place, position + 1, length)
    held = set(written) | set(range(place.size - place.kept(length), place.size))
    assert held == set(range(place.valid(position)))


@given(layers, st.integers(1, 60))
def test_every_position_is_sink_ring_or_eligible(place: LayerGeometry, length: int) -> None:
    held = [p for p in place.source_positions(length, [-1] * place.K) if p >= 0]
    assert len(held) + place.eligible(length) == length


@given(layers, st.integers(1, 20), st.integers(0, 20))
def test_nothing_is_dropped_while_a_cache_slot_is_empty(
    place: LayerGeometry, length: int, more: int
) -> None:
    count = length + more
    if count <= place.size:
        written = simulated(place, count, length)
        assert written == {position: position for position in range(count)}


@given(st.integers(1, 12), st.integers(1, 15), st.integers(0, 60))
def test_valid_cache_slots_of_a_chunk_hold_its_newest_positions(
    chunk: int, L_max: int, position: int
) -> None:
    place = LayerGeometry(0, min(chunk, L_max), 0, chunk=chunk)
    written = simulated(place, position + 1, 1)
    seen = {written[slot] for slot in range(place.valid(position))}
    first = max(position - position % chunk, position - place.L_recent + 1)
    assert seen == set(range(first, position + 1))
    assert place.oldest_recent(position) == max(position - position % chunk, position - L_max)


@given(st.integers(1, 200))
def test_default_pool_kernel_keeps_a_lone_hit(K: int) -> None:
    P = default_pool_kernel(K)
    assert P % 2 == 1
    with_equal_votes = range(-(P // 2), P // 2 + 1)  # around the hit, at 0; the lowest ones win
    assert 0 in with_equal_votes[:K]


@pytest.mark.parametrize("K, P", [(1, 1), (8, 5), (14, 9), (30, 21), (46, 31), (4096, 31)])
def test_default_pool_kernel_is_two_thirds_of_a_small_K(K: int, P: int) -> None:
    assert default_pool_kernel(K) == P


@pytest.mark.parametrize("free, ring", [(1, 1), (6, 4), (12, 8), (28, 18), (36, 18), (60, 30)])
def test_default_ring_is_half_but_18_where_a_third_is_left_for_the_vote(
    free: int, ring: int
) -> None:
    assert default_ring(free) == ring


def test_full_cache_is_a_geometry_with_only_sinks() -> None:
    (place,) = CacheGeometry.full(32, 1).layers
    assert [place.cache_slot(p, 10) for p in range(32)] == list(range(32))
    assert [place.valid(p) for p in range(32)] == list(range(1, 33))
    assert (place.cache_slots, place.kept(32)) == (32, 0)


@pytest.mark.parametrize(
    ("change", "flag"),
    [
        ({"L_obs": 9}, "--L-obs"),
        ({"L_obs": 0}, "--L-obs"),
        ({"pool_kernel": 4}, "--pool-kernel"),
        ({"L_sink": -1}, "--L-sink"),
        ({"K": (1, 2, 3)}, "--K"),
        ({"K": 65}, "--K"),
        ({"L_max": 0}, "--L-max"),
    ],
)
def test_wrong_geometry_is_refused_by_its_flag(change: dict[str, int], flag: str) -> None:
    right = {"L_max": 64, "num_layers": 2, "L_sink": 4, "L_recent": 8, "K": 4, "L_obs": 8}
    GeometryRecord("snapstream", **right).geometry()
    with pytest.raises(UserError) as error:
        GeometryRecord("snapstream", **(right | change)).geometry()
    assert error.value.message.startswith(flag)
    assert error.value.hint


@pytest.mark.parametrize("queries", voters())
def test_every_kind_of_voters_is_described_and_fields_without_use_exist(queries: str) -> None:
    voter = voter_of(queries)
    assert all(Vote(voter=voter).words)
    assert {*voter.unused} <= {field.name for field in fields(Vote)}
