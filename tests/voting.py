"""Builds whose prompts are voted on by other queries than their own, and what tests ask of them."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapexport.contract.build_directory import Build
from snapexport.runtime.engine.executor import Executor
from snapexport.runtime.engine.open_executor import open_executor
from snapexport.runtime.requests.request import SamplingParams
from tests.oracle import cases
from tests.oracle.cases import LOGITS, Case
from tests.oracle.masked import OracleRun

STEPS = 16
GREEDY = SamplingParams(max_tokens=STEPS, ignore_eos=True)

PLAIN = Case(decode_batches=(1,), baseline=True)
PSEUDO = replace(PLAIN, vote_queries="pseudo")
REPEAT = replace(PLAIN, vote_queries="repeat", L_obs=32, pool_kernel=3)

Array = NDArray[Any]


def build_of(case: Case) -> Build:
    return Build.open(cases.built(case).directory)


def opened(case: Case) -> Executor:
    return open_executor(build_of(case), threads=1)


def kept(executor: Executor) -> list[Array]:
    """Of the last prompt, [Hkv,K] for each layer."""
    found = executor.topk_positions()
    assert found is not None
    return found


def decoded(
    executor: Executor, slot: int, first: int, tokens: list[int], length: int = 0
) -> list[Array]:
    """Logits of steps that are fed with `tokens`, the first one at position `first`.

    The slots before it are idle. length: of the prompt, if it is not `first`.
    """
    rows = []
    for step, token in enumerate(tokens):
        fed = np.zeros((3, slot + 1), np.int64)
        fed[:, slot] = token, first + step, length or first
        rows.append(executor.decode(*fed)[slot].logits.copy())
    return rows


def assert_agrees(
    executor: Executor, slot: int, prompt: tuple[int, ...], want: OracleRun, *, decodes: bool = True
) -> None:
    """Assert that the prompt's logits, its kept positions and all steps are those of `want`."""
    length = len(prompt)
    prefilled = executor.prefill_prompt(slot, prompt).logits
    assert np.abs(prefilled - want.logits[0]).max() <= LOGITS
    for layer, found in enumerate(kept(executor)):
        assert np.array_equal(found, want.topk_positions[layer]), f"{length}, layer {layer}"
    if decodes:
        rows = decoded(executor, slot, length, want.tokens[:-1])
        assert max(np.abs(rows - want.logits[1:]).max(-1)) <= LOGITS, length
