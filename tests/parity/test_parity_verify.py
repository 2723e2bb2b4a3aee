"""Steps of several tokens, some of them forgotten again, agree with transformers' masked cache."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.oracle import cases
from tests.oracle.cases import Case
from tests.oracle.checkpoints import VOCABULARY
from tests.oracle.compare import assert_logits, prefill_and_compress
from tests.oracle.raw import Array, Slots
from tests.oracle.raw_steps import SeveralSlots

torch.set_num_threads(1)
pytestmark = pytest.mark.slow

LENGTHS = (2, 30, 90)
"""Prompts below the sinks, of nearly all cache slots, and long enough that most is dropped."""
STEPS = 64
TOKENS = 4


def assert_verifies(case: Case, lengths: tuple[int, ...] = LENGTHS, seed: int = 0) -> None:
    """Drafts are right up to a random token. Some steps take one token only."""
    build, rng = cases.built(case), np.random.default_rng(seed)
    wants = [cases.oracle(case, length, STEPS) for length in lengths]
    requests = [prefill_and_compress(build, want.prompt)[1] for want in wants]
    slots = SeveralSlots(build, case.geometry, requests)
    done = np.zeros(len(wants), np.int64)
    while done.min() < STEPS:
        count = 1 if rng.random() < 0.25 else case.tokens_per_step
        right = rng.integers(1, count + 1, len(wants))
        fed = rng.integers(3, VOCABULARY, (len(wants), count))
        for row, want in enumerate(wants):
            known = want.tokens[done[row] : min(done[row] + right[row], STEPS)]
            right[row] = max(1, len(known))
            fed[row, : len(known)] = known
        logits = slots.step(fed.tolist())
        for row, want in enumerate(wants):
            for token in range(right[row]):
                if (step := done[row] + token) < STEPS:
                    assert_logits(
                        logits[row, token], want.decode_logits[step], f"{case} {row} {step}"
                    )
        slots.accept(right.tolist())
        done += right


FAMILIES = (
    *("llama", "qwen3", "qwen3-sliding", "gemma2", "gemma3", "qwen3-moe"),
    *("gpt-oss", "deepseek-v2-groups", "deepseek-v3"),
    *("gemma4_text.shared", "llama4_text", "mimo_v2_flash"),
)


@pytest.mark.parametrize("name", FAMILIES)
def test_steps_of_several_tokens_agree_with_transformers(name: str) -> None:
    assert_verifies(Case(name, tokens_per_step=TOKENS))


VARIANTS: list[dict[str, Any]] = [
    {"policy": "streaming"},
    {"policy": "sage", "L_obs": 1, "pool_kernel": 1},
    {"policy": "full", "L_max": 192},
    {"policy": "full", "L_max": 192, "checkpoint": "deepseek-v2-groups"},
    {"policy": "full", "L_max": 192, "batch": 1},
    {"budget": "pyramid"},
    {"prefill_chunk": 96},
    {"extend": True},
    {"target": "portable"},
    {"target": "portable", "checkpoint": "gemma2"},
    {"checkpoint": "llama-mqa"},
    {"checkpoint": "qwen3-mha"},
    {"L_recent": 8, "L_sink": 0, "tokens_per_step": 8},
]


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_steps_of_several_tokens_agree_under_every_cache_option(options: dict[str, Any]) -> None:
    case = Case(**{"tokens_per_step": TOKENS} | options)
    assert_verifies(case, LENGTHS[-case.batch :])


@pytest.mark.parametrize("target", ["onnxruntime", "portable"])
def test_steps_of_several_tokens_equal_single_ones_in_fp16_caches(target: str) -> None:
    """As one token after the other in a build of one token a step."""
    plain = Case(cache_dtype="fp16", target=target)
    several = replace(plain, tokens_per_step=TOKENS)
    wants = [cases.oracle(plain, length, STEPS) for length in LENGTHS]
    one, many = (
        [prefill_and_compress(cases.built(case), want.prompt)[1] for want in wants]
        for case in (plain, several)
    )
    slots = Slots(cases.built(plain), one)
    steps, errors = SeveralSlots(cases.built(several), several.geometry, many), list[Array]()
    for start in range(0, STEPS, TOKENS):
        tokens = [want.tokens[start : start + TOKENS] for want in wants]
        expected = [slots.step(column) for column in zip(*tokens, strict=True)]
        got = steps.step(tokens)
        steps.accept([TOKENS] * len(wants))
        errors.append(np.abs(got - np.stack(expected, axis=1)))
    # A cached number may be rounded either way: that shows in the logits of few steps.
    assert np.max(errors) < 1e-2 and np.mean(np.array(errors) > 1e-3) < 1e-2
