"""Ranks of models with experts and with latents agree with transformers, and with one process."""

import pytest
import torch

from tests.oracle.cases import Case
from tests.runtime.ranks.parity import assert_ranks_agree

pytestmark = pytest.mark.slow

torch.set_num_threads(1)

CASES = [
    Case("qwen3-moe-cut", tensor_parallel=2),
    Case("qwen3-moe-cut", tensor_parallel=4, target="portable"),
    Case("deepseek-v2-cut", tensor_parallel=2),
    Case("deepseek-v3-cut", tensor_parallel=2, prefill_chunk=96),
    Case("deepseek-v3-cut", tensor_parallel=4),
    Case("deepseek-v2-cut", tensor_parallel=2, batch=2, data_parallel_attention=True),
    Case(
        "deepseek-v3-cut",
        tensor_parallel=4,
        batch=4,
        data_parallel_attention=True,
        target="portable",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_ranks_agree_with_transformers_and_with_one_process(case: Case) -> None:
    assert_ranks_agree(case, 77)
