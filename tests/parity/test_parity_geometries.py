"""Geometries of the cache, with prompts at every edge of them."""

import pytest
import torch

from tests.oracle import cases
from tests.oracle.cases import Case
from tests.oracle.compare import assert_agrees, assert_agrees_with_plain

torch.set_num_threads(1)

SLOW = (
    Case("llama-bf16", L_obs=1, pool_kernel=1),
    Case("mistral", L_obs=16, prefill_chunk=16, K=1),
    Case("qwen3-mha", prefill_chunk=95),
    Case("mistral", budget="pyramid", K=20),
    Case(policy="sage", L_obs=1, pool_kernel=1),
)
GEOMETRIES = (
    Case(),
    Case("llama-yarn", policy="streaming"),
    Case("llama-mqa", pool_kernel=7, L_recent=8, K=80),
    Case("qwen3-sharded", L_sink=0, pool_kernel=1, K=5),
    Case(L_sink=0, L_recent=1, L_obs=1, K=4, pool_kernel=7, batch=1),
    Case("qwen2", L_max=70, L_sink=7, L_recent=9, L_obs=9, K=17, batch=2),
    Case("llama-mqa", target="portable"),
    Case("qwen3", policy="snapkv", L_sink=0, softmax="causal", L_obs=16),
    Case("qwen2", vote="sum-squares", pool="max", group="max"),
    Case("llama-mqa", softmax="causal", group="sum", target="portable"),
    *(pytest.param(case, marks=pytest.mark.slow) for case in SLOW),
)
SINGLE_SHOT = (
    Case(prefill_chunk=96, baseline=True),
    Case("llama-linear", prefill_chunk=96, policy="streaming", batch=2),
    Case("qwen3-mha", prefill_chunk=96, L_obs=1, pool_kernel=7, K=96),
    Case(prefill_chunk=96, target="portable"),
    Case("mistral", prefill_chunk=96, budget="pyramid", softmax="causal", pool="max"),
)
"""Each also takes a checkpoint of another kind: of RoPE, of its files, of its KV heads."""
TWO_TURNS = 36
"""Decode steps in which the longest of these rings, 16, is written twice."""


def edges(case: Case) -> list[int]:
    """Prompt lengths on, before and after every border of the geometry and of the chunks."""
    ring = case.L_sink + case.L_recent
    borders = (case.L_sink, ring, ring + case.K, case.prefill_chunk, 2 * case.prefill_chunk)
    near = {border + step for border in borders for step in (-1, 0, 1)}
    lengths = near | {1, case.L_max - 1, case.L_max}
    return sorted(length for length in lengths if 0 < length <= case.L_max)


@pytest.mark.parametrize("case", GEOMETRIES, ids=str)
def test_chunked_build_agrees_with_the_oracle(case: Case) -> None:
    assert_agrees(case, edges(case), TWO_TURNS)


@pytest.mark.parametrize("case", SINGLE_SHOT, ids=str)
def test_single_shot_build_agrees_with_the_oracle(case: Case) -> None:
    assert_agrees(case, edges(case), TWO_TURNS)


def test_vote_ties_keep_the_lowest_positions() -> None:
    case = Case("llama-blind")
    assert_agrees(case, (21, 50, 96))
    kept = cases.oracle(case, 50).topk_positions[0][0]
    assert kept.tolist() == list(
        range(6, 18)
    )  # the pool's padding lowers eligible positions 4 and 5


def test_full_policy_keeps_the_whole_cache_at_a_chunks_edge() -> None:
    assert_agrees(Case(policy="full", L_max=160), (31, 32, 33))


def test_cache_is_lossless_while_all_positions_fit_into_its_slots() -> None:
    """L <= S, up to the last position that evicts none."""
    case = Case(L_recent=16, K=60)
    build, lengths = cases.built(case), (1, 10, 16)
    assert assert_agrees_with_plain(build, case.checkpoint, lengths, "nothing lost") < 1e-4


def test_a_token_beyond_the_cache_slots_drops_the_oldest_after_the_sinks() -> None:
    """L = S, and the first decoded token is at position S."""
    assert_agrees(Case(L_recent=16, K=60), (79, 80, 81), TWO_TURNS)
