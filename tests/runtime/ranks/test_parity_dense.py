"""Ranks of models with one MLP a layer agree with transformers, and with one process."""

import pytest
import torch

from tests.oracle.cases import Case
from tests.runtime.ranks.parity import assert_ranks_agree

pytestmark = pytest.mark.slow

torch.set_num_threads(1)

CASES = [
    Case("llama-cut", tensor_parallel=2),
    Case("llama-cut", tensor_parallel=4),
    Case("qwen3-cut", tensor_parallel=2, target="portable"),
    Case("qwen3-cut", tensor_parallel=4),
    Case("llama-tied-cut", tensor_parallel=4, prefill_chunk=96, top_tokens=5),
    Case("gemma3-cut", tensor_parallel=2),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_ranks_agree_with_transformers_and_with_one_process(case: Case) -> None:
    assert_ranks_agree(case, 77)
