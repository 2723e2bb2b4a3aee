"""Builds of models with experts (MoE) agree with transformers and its own loop over experts."""

from dataclasses import replace

import pytest
import torch

from tests.oracle import cases
from tests.oracle.cases import Case
from tests.oracle.compare import assert_agrees, assert_agrees_with_plain

torch.set_num_threads(1)
pytestmark = pytest.mark.slow

NAMES = ("qwen3-moe", "qwen3-moe-sparse")
CASES = [Case(name, L_max=160, baseline=True) for name in NAMES]
CASES += [replace(case, target="portable") for case in CASES]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_build_with_experts_agrees_with_transformers(case: Case) -> None:
    assert_agrees(case, (1, 12, 21, 33, 97, 160))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_baseline_with_experts_agrees_with_plain_transformers(case: Case) -> None:
    build = cases.built(case, "baseline-")
    assert_agrees_with_plain(build, case.checkpoint, (1, 65, 96), f"{case} baseline")
