"""Batch slots have rows of their own, whatever ranks share them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from snapexport.runtime.engine.decode_steps import SlotRows


@given(st.integers(1, 5), st.integers(1, 6), st.data())
def test_each_slot_has_a_row_of_the_graph_and_one_of_its_owner(
    ranks: int, each: int, data: st.DataObject
) -> None:
    slots = ranks * each
    count = data.draw(st.integers(1, slots))
    rows = SlotRows(0, ranks).rows(count, slots)
    assert len(set(rows.tolist())) == count and rows.max() < slots
    for slot, row in enumerate(rows):
        owner, own = divmod(int(row), each)
        assert SlotRows(owner, ranks).own(slot) == own
        others = [SlotRows(rank, ranks).own(slot) for rank in range(ranks) if rank != owner]
        assert set(others) <= {None}


@given(st.integers(1, 5), st.integers(1, 30))
def test_the_first_slots_are_spread_over_all_ranks(ranks: int, count: int) -> None:
    held = np.bincount([SlotRows(0, ranks).owner(slot) for slot in range(count)], minlength=ranks)
    assert held.max() - held.min() <= 1


def test_one_rank_has_all_slots_in_their_order() -> None:
    assert SlotRows().rows(3, 4).tolist() == [0, 1, 2]
    assert [SlotRows().own(slot) for slot in range(4)] == [0, 1, 2, 3]
