"""Compares a build of several ranks with transformers, and with a build of one process."""

from dataclasses import replace

import numpy as np

from snapexport.contract.build_directory import Build
from snapexport.runtime.engine.executor import Executor
from snapexport.runtime.engine.open_executor import open_executor
from tests.oracle import cases
from tests.oracle.cases import Case
from tests.oracle.compare import assert_logits
from tests.oracle.masked import OracleRun

CLOSE = 1e-4
"""Largest difference of logits between several ranks and one process."""


def opened(case: Case) -> Executor:
    """Each rank has one thread."""
    return open_executor(Build.open(cases.built(case).directory), threads=1)


def assert_ranks_agree(case: Case, length: int, steps: int = cases.STEPS) -> None:
    """The same kept positions, logits and greedy tokens, for a prompt and its continuation."""
    want = cases.oracle(case, length, steps)
    one, many = opened(_of_one(case)), opened(case)
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


def _assert_decodes(one: Executor, many: Executor, want: OracleRun) -> None:
    """In batch slot 1: slot 0 is idle."""
    length = len(want.prompt)
    for step, expected in enumerate(want.decode_logits):
        inputs = [np.array([0, value]) for value in (want.tokens[step], length + step, length)]
        alone, cut = (run.decode(*inputs)[1].logits for run in (one, many))
        assert_logits(cut, expected, f"step {step}")
        assert np.abs(cut - alone).max() < CLOSE, step


def _of_one(case: Case) -> Case:
    return replace(case, tensor_parallel=1, data_parallel_attention=False)
