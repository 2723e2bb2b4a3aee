"""Checks of executors on a fake GPU: their answers, and what top tokens copy to the host."""

from typing import Any

import numpy as np
import pytest

from snapexport.methods.top_tokens.run import TopTokens
from snapexport.runtime.engine.backend import DeviceError
from snapexport.runtime.engine.executor import Executor
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.request import SamplingParams
from tests.fakes.cuda import FakeCuda
from tests.oracle import cases

BATCH, TOP = 3, 16
"""Batch slots and top tokens of the builds."""

PROMPTS = [cases.prompt(length) for length in (1, 7, 32, 33, 64, 70, 80)]
PROMPTS += [(*cases.prompt(50), *cases.prompt(30, seed)) for seed in (1, 2)]
"""The last ones begin alike."""

samplings = pytest.mark.parametrize(
    ("sampling", "rows"),
    [
        ({}, 0),
        ({"temperature": 0.8, "top_k": 5}, 0),
        ({"temperature": 0.3, "top_p": 0.5}, 0),
        ({"temperature": 0.8}, 4),
        ({"logprobs": 2}, 4),
    ],
)
"""Sampling parameters, and the rows of logits that four tokens need."""


def assert_top_tokens_replace_logits(gpu: FakeCuda, executor: Executor) -> None:
    """Tokens, logits and normalizers of the top tokens; of all logits the rows that are read."""
    zeros = np.zeros(BATCH, np.int64)
    gpu.run_queue()  # a captured session's first run may be under way
    gpu.to_host.clear()
    predictions = executor.decode(zeros + 5, zeros, zeros + 1)
    second, row = predictions[1], 4 * executor.limits.vocab_size
    assert isinstance(second, TopTokens)
    assert sorted(gpu.to_host) == [4 * BATCH, 4 * BATCH * TOP, 8 * BATCH * TOP]
    logits = second.logits
    assert second.logits is logits and gpu.to_host[3:] == [row]
    np.testing.assert_array_equal(logits[second.tokens], second.top_logits)
    np.testing.assert_array_equal(predictions.logits[1], logits)
    assert gpu.to_host[4:] == [BATCH * row]


def assert_downloads(
    gpu: FakeCuda, ours: LLM, theirs: LLM, sampling: dict[str, Any], rows: int
) -> None:
    """Four tokens of one request, beside a greedy neighbour that never needs logits."""
    neighbour = SamplingParams(max_tokens=6, ignore_eos=True)
    params = [SamplingParams(4, seed=0, ignore_eos=True, **sampling), neighbour]
    prompts, row = (
        [cases.prompt(length) for length in (40, 20)],
        4 * ours.executor.limits.vocab_size,
    )
    gpu.to_host.clear()
    got = [one.token_ids for one in ours.generate(prompts, params)]
    assert gpu.to_host.count(row) == rows and max(gpu.to_host) <= row
    assert got == [one.token_ids for one in theirs.generate(prompts, params)]


def assert_same_answers(ours: LLM, theirs: LLM) -> None:
    """The same tokens and kept positions, in batch slots that earlier requests used."""
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    got, expected = ([c.token_ids for c in llm.generate(PROMPTS, params)] for llm in (ours, theirs))
    assert got == expected
    if (kept := theirs.executor.topk_positions()) is None:
        assert ours.executor.topk_positions() is None
    else:
        for mine, its in zip(ours.executor.topk_positions() or [], kept, strict=True):
            np.testing.assert_array_equal(mine, its)


def assert_logits_go_with_the_executor(executor: Executor) -> None:
    """Top tokens that were downloaded stay."""
    zeros = np.zeros(BATCH, np.int64)
    predictions = executor.decode(zeros, zeros, zeros)
    executor.close()
    assert isinstance(predictions[0], TopTokens)
    with pytest.raises(DeviceError, match="the executor was closed"):
        _ = predictions[0].logits
