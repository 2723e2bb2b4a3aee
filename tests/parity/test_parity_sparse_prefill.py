"""Sparse prefill agrees with transformers' model whose attention is masked to the same blocks."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from snapexport.runtime.engine.open_executor import open_executor
from tests.graphs.sparse_answer import seen_blocks
from tests.oracle import cases, masked
from tests.oracle.cases import LOGITS, Case, build_of
from tests.oracle.masked import Scoring

torch.set_num_threads(1)

SPARSE = {"prefill_chunk": 8, "prefill_budget": 24}
CASES = [
    Case(**SPARSE),
    Case("qwen3-sliding", **SPARSE),
    Case("gemma2", **SPARSE),
    Case("gpt-oss", **SPARSE),
    Case(target="tensorrt", **SPARSE),
]


@dataclass
class Sees:
    """What chunks see, by layers with windows and others. doubt: how near another choice was."""

    case: Case
    is_sparse: bool = False
    doubt: float = 1.0

    def visible(self, layer: int, query: Tensor, key: Tensor, scoring: Scoring) -> Tensor:
        rows, total = query.shape[1], key.shape[1]
        seen = masked.causal(rows, total)[None]
        if not self.is_sparse or self.case.windows[layer]:
            return seen
        sizes = self.case.prefill_budget, self.case.prefill_chunk
        held, doubt = seen_blocks(query, key, total - rows, scoring.scaling, *sizes)
        self.doubt = min(self.doubt, doubt)
        return seen & held[:, None]


def answer(case: Case, prompt: Sequence[int]) -> tuple[np.ndarray, float]:
    model = masked.load(cases.checkpoint(case.checkpoint), masked.MASKED)
    past, sees, chunk = DynamicCache(), Sees(case), case.prefill_chunk
    last = len(prompt) - chunk
    for start in range(0, last, chunk):
        sees.is_sparse = start > case.prefill_budget
        masked.fed(model, past, prompt[start : start + chunk], sees)
    if overlap := past.get_seq_length() - last:
        past.crop(-overlap)
    sees.is_sparse = False
    return masked.fed(model, past, prompt[last:], sees), sees.doubt


@pytest.mark.parametrize("case", CASES, ids=str)
def test_logits_are_those_of_transformers_with_the_same_blocks(case: Case) -> None:
    executor = open_executor(build_of(case), threads=1)
    for length in (96, 75):
        prompts = (cases.prompt(length, seed) for seed in range(100))
        answers = ((prompt, *answer(case, prompt)) for prompt in prompts)
        prompt, want, _ = next(one for one in answers if one[2] > 1e-4)
        found = executor.prefill_prompt(0, prompt).logits
        assert np.abs(found - want).max() <= LOGITS, length
