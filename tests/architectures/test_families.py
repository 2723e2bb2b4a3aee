"""Graphs of decoders that no record describes agree with transformers.

Not in the default run: `make architectures`, half an hour. FEW stand for the rest there.
"""

import pytest
import torch

from tests.oracle import cases
from tests.oracle.cases import Case
from tests.oracle.compare import assert_agrees, assert_agrees_with_plain
from tests.oracle.families import FAMILIES

torch.set_num_threads(1)

FEW = (
    *("cohere2", "gemma4_text-shared", "glm4", "gpt2", "granite", "llama4_text-nope"),
    *("mimo_v2_flash", "mixtral", "olmo3", "opt", "phi3-partial", "smollm3"),
)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FEW else pytest.mark.slow) for name in FAMILIES]
)
def test_family_agrees_with_transformers(name: str) -> None:
    case = Case(name, L_max=160, baseline=True, target="portable")
    assert_agrees(case, (1, 25, 96))
    assert_agrees_with_plain(cases.built(case, "baseline-"), name, (1, 65), f"{name} full cache")
