"""Head groups: KV heads of a layer that keep different numbers of positions."""

import numpy as np
import pytest
import torch

from snapexport.compare.loop import Loop
from snapexport.contract.build_directory import Build
from snapexport.runtime.engine.open_executor import open_executor
from snapexport.runtime.requests.llm import LLM
from tests.oracle import cases
from tests.oracle.cases import Case
from tests.oracle.compare import assert_agrees
from tests.parity.test_parity_extend import LENGTHS, assert_extends
from tests.parity.test_parity_verify import TOKENS, assert_verifies
from tests.runtime.engine import test_blocks, test_hand_over

torch.set_num_threads(1)
pytestmark = pytest.mark.slow

TWO_HEADS = ((5, 19), (20, 4))
FOUR_HEADS = ((6, 12, 20, 10), (3, 21, 3, 21))
MIXED = ((0, 0), (4, 20), (0, 0))
"""K of each KV head of each layer, 12 on average."""

HEADS = {"budget": "heads", "head_budget": TWO_HEADS}
MIXED_HEADS = {"budget": "heads", "head_budget": MIXED}
PROMPTS = (1, 3, 20, 21, 26, 33, 40, 64, 96)
"""Lengths at the sinks' and the ring's end, and where the smaller or the larger group is full."""

FOUR = Case("qwen3-mha", budget="heads", head_budget=FOUR_HEADS, head_groups=4)

WHOLE = ((7, 7), (6, 76))
"""Over all layers: one head has room for the whole prompt, and the others keep few."""

SHARED = ((0, 0), (4, 20), (0, 0), (18, 6), (), ())
"""The last two layers read the caches of those before."""

CASES = (
    Case(head_budget=((3, 6), (33, 6)), budget="heads"),
    Case(head_budget=WHOLE, budget="heads", K=24),
    Case("gemma4_text.shared", budget="heads", head_budget=SHARED),
    Case("gemma4_text.shared", budget="heads", head_budget=SHARED, prefill_chunk=96),
    Case(**HEADS),
    Case(**HEADS, target="portable"),
    Case(**HEADS, prefill_chunk=96),
    Case(**HEADS, vote="sum-squares", softmax="causal", group="max", batch=1),
    Case(**HEADS, share_weights=True),
    Case(**HEADS, decode_attention="valid"),
    FOUR,
    Case("gemma2", **MIXED_HEADS),
    Case("gpt-oss", budget="heads", head_budget=((0, 0), (4, 20)) * 2),
)

NOISE = {"fp16": 0.005, "int8": 0.08}
"""Largest noise of logits by the caches' type, relative to the logits' standard deviation."""


def build_of(case: Case) -> Build:
    return Build.open(cases.built(case).directory)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_head_keeps_its_own_number_of_positions_as_transformers_masked(case: Case) -> None:
    assert_agrees(case, PROMPTS, 36)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_turns_extend_each_group(lengths: tuple[int, ...]) -> None:
    assert_extends(Case(**HEADS, extend=True), lengths)


@pytest.mark.parametrize("name", ["llama", "gpt-oss"])
def test_steps_of_several_tokens_with_head_groups(name: str) -> None:
    budget = ((0, 0), (4, 20)) * 2 if name == "gpt-oss" else TWO_HEADS
    assert_verifies(Case(name, budget="heads", head_budget=budget, tokens_per_step=TOKENS))


@pytest.mark.parametrize("length", [20, 40, 96])
@pytest.mark.parametrize("cache_dtype", NOISE)
def test_rounded_caches_of_groups_are_close_to_transformers(cache_dtype: str, length: int) -> None:
    case = Case(**HEADS, cache_dtype=cache_dtype)
    want = cases.oracle(case, length, 24)
    tokens = np.array([*want.prompt, *want.tokens[:24]])
    with Loop(build_of(case)) as backend:
        got = np.asarray(backend.logits(tokens, length))
    np.testing.assert_allclose(got[0], want.prefill_logits, atol=cases.LOGITS)
    error = (got[1:] - want.decode_logits).std() / want.decode_logits.std()
    assert 0 < error < NOISE[cache_dtype]


@pytest.mark.parametrize("case", [Case(**HEADS), Case("gemma2", **MIXED_HEADS), FOUR], ids=str)
def test_runtime_says_what_each_head_of_a_layer_kept(case: Case) -> None:
    executor, want = open_executor(build_of(case), threads=1), cases.oracle(case, 96, 1)
    executor.prefill_prompt(0, want.prompt)
    for layer, found in enumerate(executor.topk_positions() or []):
        for one in case.geometry.slots.caches_of(layer):
            rows = found if one.heads is None else found[list(one.heads)]
            kept = want.topk_positions[one.cache]
            assert np.array_equal(rows[:, : kept.shape[1]], kept), layer
            assert (rows[:, kept.shape[1] :] == -1).all(), layer


@pytest.mark.parametrize("cache_dtype", [None, *NOISE])
def test_prompt_handed_over_with_head_groups_gives_the_tokens_of_one_process(
    cache_dtype: str | None,
) -> None:
    build = build_of(Case(**HEADS, cache_dtype=cache_dtype))
    prompts = [cases.prompt(length, seed) for seed in range(2) for length in (5, 32, 75)]
    prefill, decode = (LLM(build.directory, threads=1, role=role) for role in ("prefill", "decode"))
    greedy = test_hand_over.GREEDY
    found = test_hand_over.hand_over(prefill, decode, prompts, greedy)
    assert found == test_hand_over.together(build, prompts, greedy)


@pytest.mark.parametrize("lengths", [(90, 32, 7), (40, 5, 30)])
def test_turns_onto_parked_rows_of_head_groups_agree_with_transformers(
    lengths: tuple[int, ...],
) -> None:
    case = Case(**HEADS, extend=True, batch=2)
    ids, tokens = test_blocks.expected(lengths, case)
    llm = test_blocks.llm(case, parked_rows=1)
    cached = []
    for turn in range(len(ids)):
        prompt = test_blocks.joined(ids[: turn + 1])
        deltas = list(llm.stream(prompt, test_blocks.GREEDY))
        cached.append(deltas[0].cached_tokens)
    assert cached == [0, lengths[0], sum(lengths[:2])]
    assert [token for one in deltas for token in one.token_ids] == tokens
