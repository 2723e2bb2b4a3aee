"""Builds of two ranks with other options give the tokens of one process."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from snapexport.contract.build_directory import Build
from snapexport.runtime.engine.open_executor import open_executor
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.request import SamplingParams
from tests.oracle import cases
from tests.oracle.cases import Case
from tests.runtime.ranks.test_parity import CLOSE

pytestmark = pytest.mark.slow

torch.set_num_threads(1)

PARAMS = SamplingParams(max_tokens=24, ignore_eos=True)
PROMPTS = [list(cases.prompt(length)) for length in (5, 40, 77)]
LLAMA, LATENT = (Case(name, tensor_parallel=2) for name in ("llama-cut", "deepseek-v3-cut"))
OVER_BATCH = replace(LATENT, data_parallel_attention=True, batch=4)
CASES: list[tuple[Case, dict[str, Any]]] = [
    (replace(LLAMA, cache_dtype="int8", decode_batches=(1, 3), prompt_cache_dtype="fp16"), {}),
    (replace(LLAMA, extend=True, short_chunks=(8,)), {"prefill": "blocks"}),
    (replace(LLAMA, share_weights=True), {"prepack": True}),
    (replace(LLAMA, policy="full"), {}),
    (replace(LATENT, extend=True), {"prefill": "blocks"}),
    (replace(OVER_BATCH, decode_batches=(2, 4), cache_dtype="fp16", share_weights=True), {}),
    (replace(OVER_BATCH, extend=True, top_tokens=8), {"prefill": "blocks"}),
    (replace(OVER_BATCH, policy="full"), {}),
    (replace(OVER_BATCH, prefill_chunk=96), {}),
]


def test_a_row_moves_to_a_batch_slot_of_another_rank() -> None:
    case = replace(OVER_BATCH, tensor_parallel=4)
    alone = replace(case, tensor_parallel=1, data_parallel_attention=False)
    length, found = len(PROMPTS[2]), []
    for one in (alone, case):
        executor = open_executor(Build.open(cases.built(one).directory), threads=1)
        for slot in (0, 3):
            executor.prefill_prompt(slot, PROMPTS[2 * slot // 3])
        executor.move(3, 1)
        lengths = np.array([len(PROMPTS[0]), length])
        found.append(executor.decode(np.array([7, 9]), lengths, lengths).logits.copy())
        executor.close()
    assert np.abs(found[0] - found[1]).max() < CLOSE


@pytest.mark.parametrize(("case", "how"), CASES, ids=str)
def test_options_of_ranks_give_the_tokens_of_one_process(case: Case, how: dict[str, Any]) -> None:
    found = []
    for one in (replace(case, tensor_parallel=1, data_parallel_attention=False), case):
        llm = LLM(cases.built(one).directory, threads=1, **how)
        found.append([completion.token_ids for completion in llm.generate(PROMPTS, PARAMS)])
        llm.executor.close()
    assert found[0] == found[1]
