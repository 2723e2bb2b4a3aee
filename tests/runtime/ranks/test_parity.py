"""Ranks agree with transformers, and with a build of one process."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from snapexport.contract.pieces import pieces_of
from snapexport.runtime.engine.executor import Executor
from snapexport.runtime.engine.open_executor import open_executor
from tests.oracle import cases
from tests.oracle.cases import Case
from tests.oracle.compare import assert_logits
from tests.oracle.masked import OracleRun

pytestmark = pytest.mark.slow

torch.set_num_threads(1)

OVER_BATCH: dict[str, Any] = {"data_parallel_attention": True}
CASES = [
    Case("llama-cut", tensor_parallel=2),
    Case("llama-cut", tensor_parallel=4),
    Case("qwen3-cut", tensor_parallel=2, target="portable"),
    Case("qwen3-cut", tensor_parallel=4),
    Case("llama-tied-cut", tensor_parallel=4, prefill_chunk=96, top_tokens=5),
    Case("gemma3-cut", tensor_parallel=2),
    Case("qwen3-moe-cut", tensor_parallel=2),
    Case("qwen3-moe-cut", tensor_parallel=4, target="portable"),
    Case("deepseek-v2-cut", tensor_parallel=2),
    Case("deepseek-v3-cut", tensor_parallel=2, prefill_chunk=96),
    Case("deepseek-v3-cut", tensor_parallel=4),
    Case("deepseek-v2-cut", tensor_parallel=2, batch=2, **OVER_BATCH),
    Case("deepseek-v3-cut", tensor_parallel=4, batch=4, target="portable", **OVER_BATCH),
]
CLOSE = 1e-4
"""Largest difference of logits between several ranks and one process."""


@pytest.mark.parametrize("case", CASES, ids=str)
def test_ranks_agree_with_transformers_and_with_one_process(case: Case) -> None:
    """The same kept positions, logits and greedy tokens, for a prompt and its continuation."""
    want = cases.oracle(case, 77)
    alone = replace(case, tensor_parallel=1, data_parallel_attention=False)
    one, many = (open_executor(cases.build_of(of), threads=1) for of in (alone, case))
    try:
        _assert_prefills(one, many, want)
        _assert_decodes(one, many, want)
    finally:
        one.close()
        many.close()


def _assert_prefills(one: Executor, many: Executor, want: OracleRun) -> None:
    alone, cut = (run.prefill_prompt(1, want.prompt).logits for run in (one, many))
    assert_logits(cut, want.prefill_logits, "prefill")
    assert np.abs(cut - alone).max() < CLOSE
    kept = many.topk_positions()
    assert kept is not None
    for found, expected in zip(kept, want.topk_positions, strict=True):
        assert np.array_equal(found, expected)
    last, length = pieces_of(len(want.prompt), one.limits.prefill)[-1], len(want.prompt)
    assert np.allclose(many.held_shares(last, length), one.held_shares(last, length))


def _assert_decodes(one: Executor, many: Executor, want: OracleRun) -> None:
    """In batch slot 1: slot 0 is idle."""
    length = len(want.prompt)
    for step, expected in enumerate(want.decode_logits):
        inputs = [np.array([0, value]) for value in (want.tokens[step], length + step, length)]
        alone, cut = (run.decode(*inputs)[1].logits for run in (one, many))
        assert_logits(cut, expected, f"step {step}")
        assert np.abs(cut - alone).max() < CLOSE, step
