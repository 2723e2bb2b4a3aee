"""Head groups: KV heads of a layer that keep different numbers of positions."""

import pytest
import torch

from tests.oracle.cases import Case
from tests.oracle.compare import assert_agrees
from tests.test_parity_extend import LENGTHS, assert_extends
from tests.test_parity_verify import TOKENS, assert_verifies

torch.set_num_threads(1)

TWO_HEADS = ((5, 19), (20, 4))
FOUR_HEADS = ((6, 12, 20, 10), (3, 21, 3, 21))
MIXED = ((0, 0), (4, 20), (0, 0))
"""K of each KV head of each layer, 12 on average."""

HEADS = {"budget": "heads", "head_budget": TWO_HEADS}
PROMPTS = (1, 3, 20, 21, 26, 33, 40, 64, 96)
"""Lengths at the sinks' and the ring's end, and where the smaller or the larger group is full."""

CASES = (
    Case(**HEADS),
    Case(**HEADS, target="portable"),
    Case(**HEADS, prefill_chunk=96),
    Case(**HEADS, vote="sum-squares", softmax="causal", group="max", batch=1),
    Case(**HEADS, share_weights=True),
    Case(**HEADS, decode_attention="valid"),
    Case("qwen3-mha", budget="heads", head_budget=FOUR_HEADS, head_groups=4),
    Case("gemma2", budget="heads", head_budget=MIXED),
    Case("gpt-oss", budget="heads", head_budget=((0, 0), (4, 20)) * 2),
)


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
