"""SnapKVSelect's kernels, run thread by thread on the host, against its definitions."""

from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from snapexport.graphs.functions.vote import DEFAULTS, STAGES
from snapexport.plugins import reference
from snapexport.plugins.binding import SelectProblem, options
from tests.plugins.body import call_body
from tests.plugins.emulated import Emulated, late, random


@dataclass(frozen=True)
class Case:
    kv_heads: int = 2
    group: int = 2
    window: int = 3
    T: int = 64
    head_dim: int = 8
    sink: int = 2
    recent: int = 7
    K: int = 6
    pool_kernel: int = 5
    dtype: torch.dtype = torch.float32
    softcap: float = 0.0

    def problem(self, vote: dict[str, str] = DEFAULTS) -> SelectProblem:
        shape = [self.kv_heads, self.group, self.window, self.T, self.head_dim]
        cache = [self.sink, self.recent, self.K, self.pool_kernel]
        scores = [self.head_dim**-0.5, self.softcap]
        return SelectProblem(*shape, *cache, *scores, **options(**vote))

    def data(self, seed: int, sharpness: float = 3.0) -> tuple[Tensor, Tensor]:
        rows = (self.kv_heads * self.group, self.window, self.head_dim)
        query = random(rows, self.dtype, seed, sharpness)
        key = random((self.kv_heads, self.T, self.head_dim), self.dtype, seed + 1)
        return query, key


def by_function(
    case: Case, query: Tensor, key: Tensor, length: int, vote: dict[str, str]
) -> list[Any]:
    """Positions that the body of the ONNX function keeps."""
    attributes = {
        "L_sink": case.sink,
        "L_recent": case.recent,
        "K": [case.K],
        "pool_kernel": [1, case.pool_kernel],
        "scale": case.head_dim**-0.5,
        "softcap": case.softcap,
    }
    inputs = [query[None], key[None], torch.tensor([length])]
    return call_body("SnapKVSelect", inputs, attributes, vote)[0][0].tolist()


EVERY_VOTE = [dict(zip(STAGES, names, strict=True)) for names in product(*STAGES.values())]


@pytest.mark.parametrize("vote", EVERY_VOTE, ids=lambda vote: "-".join(vote.values()))
def test_select_kernel_keeps_the_positions_of_the_onnx_function(
    emulated: Emulated, vote: dict[str, str]
) -> None:
    case = Case()
    for length in (0, 5, 9, 15, 16, 40, 64):
        query, key = case.data(length)
        kept = emulated.select(case.problem(vote), query, key, length)
        assert kept.tolist() == by_function(case, query, key, length, vote)


def test_select_kernel_applies_the_softcap(emulated: Emulated) -> None:
    case = Case(softcap=1.5)
    query, key = case.data(0, sharpness=8.0)
    kept = emulated.select(case.problem(), query, key, 60).tolist()
    assert kept == by_function(case, query, key, 60, DEFAULTS)
    assert kept != by_function(replace(case, softcap=0.0), query, key, 60, DEFAULTS)


def check(emulated: Emulated, case: Case, length: int, vote: dict[str, str]) -> None:
    """Against float64, and the same for any late warp."""
    p = case.problem(vote)
    query, key = case.data(length)
    key[:, length:] = torch.nan  # keys beyond the prompt must not matter
    kept = emulated.select(p, query, key, length)
    scores = reference.scores(p, query, key, length)
    assert reference.complaint(p, scores, kept, length, 1e-4) == ""
    for warp in (0, 5):
        with late(warp):
            assert torch.equal(emulated.select(p, query, key, length), kept)


SHAPES = {
    "one head, one query, no pool": Case(1, 1, 1, 40, 8, 0, 4, 5, 1),
    "no sinks": Case(sink=0),
    "odd window, wide pool": Case(1, 3, 11, 300, 16, 4, 20, 50, 13),
    "even pool": Case(1, 2, 8, 200, 16, 4, 20, 50, 4),
    "head dim 40": Case(2, 2, 4, 150, 40, 3, 20, 33),
    "head dim 128": Case(1, 4, 8, 260, 128, 4, 16, 64, 7),
    "head dim 256": Case(1, 2, 8, 130, 256, 4, 16, 20, 7),
    "the default pool of 31": Case(1, 3, 4, 300, 16, 4, 20, 50, 31),
    "a softcap": Case(1, 2, 8, 130, 64, 4, 16, 20, 7, softcap=2.0),
    "several key blocks": Case(1, 2, 4, 2500, 8, 1030, 60, 300, 7),
    "everything kept": Case(K=60),
    "slices of whole heads": Case(1, 7, 33, 90, 128, 2, 40, 11),
    "a head of several slices": Case(1, 2, 150, 260, 128, 2, 160, 31),
}
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
VOTES = [DEFAULTS, dict(zip(STAGES, ("causal", "sum-squares", "max", "max"), strict=True))]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_select_kernel_keeps_the_winners_of_any_shape(
    emulated: Emulated, name: str, dtype: torch.dtype
) -> None:
    case = replace(SHAPES[name], dtype=dtype)
    for vote, length in product(VOTES, (case.T, case.T - 5)):
        check(emulated, case, length, vote)


@pytest.mark.parametrize("width", [31, 2049, 8302])
@pytest.mark.parametrize("vote", VOTES, ids=["sum-avg", "squares-max"])
def test_select_kernel_pools_over_the_edges_of_tiles(
    emulated: Emulated, width: int, vote: dict[str, str]
) -> None:
    """Within a tile, wider than one, and wider than shared memory holds. Three tiles."""
    case = Case(1, 2, 2, 4300, 8, 2, 7, 300, width)
    p = case.problem(vote)
    query, key = case.data(width)
    kept = emulated.select(p, query, key, 4290)
    scores = reference.scores(p, query, key, 4290)
    assert reference.complaint(p, scores, kept, 4290, 1e-4) == ""


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_select_kernel_resolves_ties_to_the_lower_position(
    emulated: Emulated, dtype: torch.dtype
) -> None:
    case = Case(2, 2, 3, 5000, 8, 2, 7, 2100, 1, dtype)
    query, key = case.data(0)
    kept = emulated.select(case.problem(), torch.zeros_like(query), key, 4900)
    assert kept.tolist() == [list(range(2, 2102))] * 2


def test_select_kernel_separates_winners_from_ties_within_a_tile(emulated: Emulated) -> None:
    case = Case(1, 1, 1, 64, 8, 2, 7, 6, 1)
    query, key = torch.ones(1, 1, 8), torch.zeros(1, 64, 8)
    key[0, [50, 30, 41]] = 1.0
    kept = emulated.select(case.problem(), query, key, 64)
    assert kept.tolist() == [[2, 3, 4, 30, 41, 50]]


def test_select_kernel_does_not_overflow_on_large_scores(emulated: Emulated) -> None:
    case = Case(1, 2, 4, 300, 16, 2, 7, 20, 1)
    query, key = case.data(3, sharpness=1e4)
    p = case.problem()
    scores = reference.scores(p, query, key, 300)
    clear = (scores > 0.1).sum()
    kept = emulated.select(p, query, key, 300)[0].tolist()
    assert clear > 0
    assert {int(i) + 2 for i in (scores[0] > 0.1).nonzero()[:, 0]} <= set(kept)


def test_select_kernel_reads_nothing_beyond_the_cache(emulated: Emulated) -> None:
    case = Case()
    query, key = case.data(1)
    p = case.problem()
    assert torch.equal(
        emulated.select(p, query, key, 10**12), emulated.select(p, query, key, case.T)
    )


REFUSED = {
    "head dimension is 12": {"head_dim": 12},
    "head dimension is 512": {"head_dim": 512},
    "L_recent is 0": {"recent": 0},
    "L_obs is 9": {"window": 9},
    "K is 0": {"K": 0},
    "K is 65": {"K": 65},
    "pool_kernel is 0": {"pool_kernel": 0},
    "scale is 0": {"scale": 0.0},
    "softcap is -1": {"softcap": -1.0},
    "query heads of a KV head is 0": {"group": 0},
    "L_sink is -1": {"sink": -1},
}


@pytest.mark.parametrize("message", REFUSED)
def test_select_kernel_refuses_unsupported_sizes(emulated: Emulated, message: str) -> None:
    p = Case().problem()
    assert emulated.launchers.select_refusal(p, "float32") == ""
    ((field, value),) = REFUSED[message].items()
    setattr(p, field, value)
    assert emulated.launchers.select_refusal(p, "float32").startswith(message)
