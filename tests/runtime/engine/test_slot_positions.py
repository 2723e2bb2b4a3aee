"""A step of several tokens sees what steps of one token would see, whatever is forgotten again."""

from collections.abc import Iterator

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.records import GeometryRecord
from snapexport.contract.slots import LayerGeometry
from snapexport.methods.several_tokens.run import SlotPositions

Held = list[int]
Step = tuple[int, int, Held]


@st.composite
def geometries(draw: st.DrawFn) -> CacheGeometry:
    L_recent = draw(st.integers(1, 12))
    return GeometryRecord(
        "snapstream",
        L_max=200,
        num_layers=1,
        L_sink=draw(st.integers(0, 4)),
        L_recent=L_recent,
        K=draw(st.integers(0, 6)),
        L_obs=1,
        step_tokens=draw(st.integers(2, 8)),
    ).geometry()


def steps_of(
    geometry: CacheGeometry, length: int, sizes: list[tuple[bool, int]]
) -> Iterator[tuple[int, list[int], Held]]:
    """(first position, accepted, positions held) of each step of one batch slot."""
    positions, q = SlotPositions(geometry, batch=2), geometry.steps.tokens
    positions.fill(0, length)
    position = length
    for is_single, wanted in sizes:
        tokens = 1 if is_single else q
        count = min(1 + wanted, tokens)
        arrays = {
            "write_slot": np.zeros(1, np.int64),
            "slot_positions": np.zeros((1, geometry.layers[0].cache_slots), np.int64),
            "position_ids": position + np.arange(tokens)[None],
        }
        positions.feed(arrays)
        held = arrays["slot_positions"][0].tolist()
        first = int(arrays["write_slot"][0])
        assert held[first : first + tokens] == list(range(position, position + tokens))
        yield position, list(range(count)), held
        if tokens > 1:
            positions.accept(0, count)
        position += count


def visible(shape: LayerGeometry, held: Held, position: int, length: int) -> list[int]:
    """Positions of sinks and ring that a token sees by the graph's rule, without kept ones."""
    end, newest = shape.ring(length).stop, recent(shape, length)
    seen = [
        one
        for slot, one in enumerate(held[:end])
        if 0 <= one <= position and (slot < shape.L_sink or one > position - newest)
    ]
    return sorted(seen)


def recent(shape: LayerGeometry, length: int) -> int:
    """The newest positions that a token sees beside the sinks."""
    is_whole = length <= shape.L_sink + shape.L_recent + shape.K
    return shape.L_recent + shape.K if is_whole else shape.L_recent


@settings(deadline=None, max_examples=300)
@given(
    geometries(),
    st.integers(1, 60),
    st.lists(st.tuples(st.booleans(), st.integers(0, 7)), min_size=1, max_size=60),
)
def test_every_accepted_token_sees_the_sinks_and_the_newest_positions(
    geometry: CacheGeometry, length: int, sizes: list[tuple[bool, int]]
) -> None:
    (shape,) = geometry.layers
    for first, accepted, held in steps_of(geometry, length, sizes):
        for token in accepted:
            position = first + token
            sinks = range(min(shape.L_sink, position + 1))
            oldest = position - recent(shape, length) + 1
            ring = range(max(shape.L_sink, oldest), position + 1)
            assert visible(shape, held, position, length) == [*sinks, *ring]


@given(geometries(), st.integers(1, 60))
def test_kept_positions_stay(geometry: CacheGeometry, length: int) -> None:
    (shape,) = geometry.layers
    ring_end = shape.ring(length).stop
    for _, _, held in steps_of(geometry, length, [(False, 7)] * 20):
        assert sum(one >= 0 for one in held[ring_end:]) == shape.kept(length)


def test_a_moved_batch_slot_goes_on_as_before() -> None:
    geometry = GeometryRecord(
        "streaming", 50, 1, L_sink=2, L_recent=5, K=0, L_obs=1, step_tokens=4
    ).geometry()
    positions = SlotPositions(geometry, 2)
    positions.fill(1, 20)
    positions.move(1, 0)
    arrays = {"write_slot": np.zeros(2, np.int64), "slot_positions": np.zeros((2, 13), np.int64)}
    arrays["position_ids"] = 20 + np.array([range(4)] * 2)
    positions.feed(arrays)
    moved, left = arrays["slot_positions"].tolist()
    assert moved == left and {20, 21, 22, 23} < set(moved)
    assert len(set(arrays["write_slot"].tolist())) == 1
