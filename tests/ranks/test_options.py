"""Builds of two ranks with other options give the tokens of one process."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from snapexport.runtime.llm import LLM
from snapexport.runtime.requests import SamplingParams
from tests.oracle import cases
from tests.oracle.cases import Case

torch.set_num_threads(1)

PARAMS = SamplingParams(max_tokens=24, ignore_eos=True)
PROMPTS = [list(cases.prompt(length)) for length in (5, 40, 77)]
LLAMA, LATENT = (Case(name, tensor_parallel=2) for name in ("llama-cut", "deepseek-v3-cut"))
CASES: list[tuple[Case, dict[str, Any]]] = [
    (replace(LLAMA, cache_dtype="int8", decode_attention="valid", decode_batches=(1, 3)), {}),
    (replace(LLAMA, extend=True), {"prefill": "blocks"}),
    (replace(LLAMA, share_weights=True), {"prepack": True}),
    (replace(LLAMA, policy="full"), {}),
    (replace(LATENT, extend=True), {"prefill": "blocks"}),
]


@pytest.mark.parametrize(("case", "how"), CASES, ids=str)
def test_options_of_ranks_give_the_tokens_of_one_process(case: Case, how: dict[str, Any]) -> None:
    found = []
    for one in (replace(case, tensor_parallel=1), case):
        llm = LLM(cases.built(one).directory, threads=1, **how)
        found.append([completion.token_ids for completion in llm.generate(PROMPTS, PARAMS)])
        llm.executor.close()
    assert found[0] == found[1]
