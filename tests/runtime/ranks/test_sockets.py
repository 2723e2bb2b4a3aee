"""Ranks exchange tensors over sockets, and a rank that ends is noticed."""

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from snapexport.runtime.engine.backend import Collectives, DeviceError
from snapexport.runtime.ranks.sockets import FAILED, First, Link, Other

RANKS = 3


def connected() -> tuple[First, list[Other]]:
    pairs = [socket.socketpair() for _ in range(1, RANKS)]
    links = [Link(ours, rank) for rank, (ours, _) in enumerate(pairs, 1)]
    others = [Other(Link(theirs, 0), rank, RANKS) for rank, (_, theirs) in enumerate(pairs, 1)]
    return First(links), others


def in_all(work: Callable[[Collectives], NDArray[Any]]) -> list[NDArray[Any]]:
    first, others = connected()
    with ThreadPoolExecutor(RANKS) as pool:
        return list(pool.map(work, [first, *others]))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_all_ranks_get_the_same_sum_to_the_bit(dtype: type) -> None:
    parts = np.random.default_rng(0).standard_normal((RANKS, 4, 500)).astype(dtype)

    def work(side: Collectives) -> NDArray[Any]:
        part = parts[side.rank].copy()
        side.all_reduce(part)
        return part

    first, *others = in_all(work)
    assert np.allclose(first, parts.astype(np.float64).sum(0), rtol=2e-3, atol=2e-3)
    assert all(first.tobytes() == other.tobytes() for other in others)


def test_parts_are_gathered_in_the_order_of_the_ranks() -> None:
    def work(side: Collectives) -> NDArray[Any]:
        every = np.zeros((2 * RANKS, 3), np.int64)
        side.all_gather(np.full((2, 3), side.rank), every)
        return every

    for found in in_all(work):
        assert np.array_equal(found, np.repeat([0, 1, 2], 2)[:, None].repeat(3, 1))


def test_each_rank_gets_its_rows_of_all_ranks() -> None:
    def work(side: Collectives) -> NDArray[Any]:
        parts = 10 * side.rank + np.arange(RANKS).repeat(2)[:, None].repeat(3, 1)
        side.all_to_all(parts)
        return parts

    for rank, found in enumerate(in_all(work)):
        expected = rank + 10 * np.arange(RANKS).repeat(2)
        assert np.array_equal(found, expected[:, None].repeat(3, 1))


@pytest.mark.parametrize("source", range(RANKS))
@pytest.mark.parametrize("target", range(RANKS))
def test_an_array_is_handed_from_one_rank_to_another(source: int, target: int) -> None:
    if source == target:
        return

    def work(side: Collectives) -> NDArray[Any]:
        array = np.full((2, 3), side.rank, np.float16)
        side.hand(source, target, array)
        side.all_gather(array, np.empty((RANKS * 2, 3), np.float16))  # they are in step
        return array

    found = [array[0, 0] for array in in_all(work)]
    assert found == [source if rank == target else rank for rank in range(RANKS)]


def test_a_rank_that_ends_within_a_tensor_ends_the_wait() -> None:
    ours, theirs = socket.socketpair()
    theirs.sendall(b"T\x10\0\0\0\0\0\0\0" + bytes(7))
    theirs.close()
    with pytest.raises(DeviceError, match="rank 2 ended"):
        Link(ours, 2).receive_array(np.zeros(4, np.float32))


def test_ranks_that_exchange_different_tensors_are_refused() -> None:
    ours, theirs = socket.socketpair()
    Link(theirs, 0).send_array(np.zeros(5, np.float32))
    with pytest.raises(DeviceError, match="don't agree"):
        Link(ours, 2).receive_array(np.zeros(4, np.float32))


def test_the_reason_of_a_failed_rank_is_passed_on() -> None:
    ours, theirs = socket.socketpair()
    Link(theirs, 0).send(FAILED, b"UserError: no memory")
    with pytest.raises(DeviceError, match="rank 2: UserError: no memory"):
        Link(ours, 2).receive_array(np.zeros(4, np.float32))
