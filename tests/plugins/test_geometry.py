"""The kernels' index arithmetic against the contract's and NumPy's, over random geometries."""

import ctypes
from pathlib import Path

import numpy as np
import pytest

from snapexport.contract.slots import LayerGeometry
from snapexport.plugins import binding
from tests.plugins.compiled import Libraries


@pytest.fixture(scope="module")
def native(compiler: str, libraries: Libraries) -> ctypes.CDLL:
    source = Path(__file__).with_name("geometry_api.cpp")
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    command = [compiler, *flags, f"-I{binding.HOME}", str(source), "-o"]
    library = libraries.make("geometry", lambda out: [*command, str(out)])
    return ctypes.CDLL(str(library))


def filled(size: int) -> np.ndarray:
    return np.full(size, -99, np.int32)


def at(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def test_kernel_window_positions_equal_the_geometrys(native: ctypes.CDLL) -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        sink, recent = int(rng.integers(0, 9)), int(rng.integers(1, 40))
        length = int(rng.integers(sink + recent, 120))
        out = filled(sink + recent)
        native.window_positions(sink, recent, length, at(out))
        assert out.tolist() == LayerGeometry(sink, recent, 0).source_positions(length, [])


def test_kernel_eligible_range_and_pool_reach_equal_the_contracts(native: ctypes.CDLL) -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        sink, recent, T, K = (int(rng.integers(low, 50)) for low in (0, 1, 1, 0))
        length, width = int(rng.integers(0, T + 1)), int(rng.integers(1, 12))
        out = filled(2 + 2 * T)
        native.ranges(sink, recent, K, length, T, width, at(out))
        span = np.arange(out[0], out[1])
        assert len(span) == LayerGeometry(sink, recent, K).eligible(length)
        assert not len(span) or (out[0], out[1]) == (sink, length - recent)
        # SAME_UPPER: one more behind than before where the width is even.
        reach = np.arange(width) - (width - 1) // 2
        for position in span:
            expected = np.intersect1d(position + reach, span)
            begin, end = out[2 + 2 * position : 4 + 2 * position]
            assert np.arange(begin, end).tolist() == expected.tolist()


@pytest.mark.parametrize("groups", [1, 2, 4, 8, 16])
def test_every_query_column_is_in_exactly_one_slice(native: ctypes.CDLL, groups: int) -> None:
    rng = np.random.default_rng(groups)
    fit = native.fits(groups)
    # Queries, and a maximum and a sum for each of 8 warps, in the 48 KiB that every GPU has.
    assert fit >= 32
    assert fit * (native.stride(groups) + 8 * 2 * 4) <= 48 * 1024
    for _ in range(100):
        group, window = int(rng.integers(1, 40)), int(rng.integers(1, 300))
        seen = np.zeros(group * -(-window // 8) * 8, np.int32)
        assert native.cover(group, window, groups, at(seen)) <= fit
        assert (seen == 1).all()


def test_queries_of_eight_lanes_have_no_bank_conflicts(native: ctypes.CDLL) -> None:
    for groups in (1, 2, 4, 8, 16):
        rows = np.arange(2)[:, None] * native.stride(groups)
        banks = (rows + np.arange(64)[None, ::4]) // 4 % 32
        assert len(np.unique(banks)) == 32


def test_staged_votes_are_apart_and_have_no_bank_conflicts(native: ctypes.CDLL) -> None:
    for width in (1, 31, 4097):
        out = filled(2048 + width - 1)
        assert native.staged(width, at(out)) > out.max() * 4
        assert (np.diff(out) >= 1).all()
        runs = out[: 32 * 8].reshape(32, 8)
        assert all(len(np.unique(runs[:, k] % 32)) == 32 for k in range(8))
    assert native.staged(7056, at(filled(2048 + 7056 - 1)))
    # 40 KiB beside the counts of digits: 9,103 votes, and a place skipped after each run of 8.
    assert not native.staged(7057, None)
    assert not native.staged(2**31 - 1, None)


def test_radix_digits_rank_as_the_numbers_do(native: ctypes.CDLL) -> None:
    rng = np.random.default_rng(2)
    for value in [0.0, 1.0, 32.0, *rng.random(200, np.float32) ** 4]:
        key = int(np.float32(value).view(np.uint32))
        out = np.zeros(7, np.uint32)
        native.digits(key, at(out))
        high, middle, low, *prefixes = (int(one) for one in out)
        assert (high << 20) + (middle << 10) + low == key
        assert max(middle, low) < 1024
        assert high < 2048
        assert prefixes == [0, key >> 20, key >> 10, key]
