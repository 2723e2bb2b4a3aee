"""What a build can have beside the plain graphs, on a few of the decoders that no test names else.

`make architectures` runs these.
"""

import pytest
import torch

from tests.graphs.test_cache_dtype import build_of, logits, noise
from tests.oracle import cases
from tests.oracle.cases import Case
from tests.oracle.compare import assert_agrees
from tests.parity.test_parity_extend import assert_extends
from tests.parity.test_parity_verify import assert_verifies

torch.set_num_threads(1)
pytestmark = pytest.mark.architectures

FIVE = ("cohere2_moe", "glm4", "gpt2", "granite_swa", "smollm3")
"""Experts beside interleaved RoPE, partial RoPE, learned positions, sinks, layers without RoPE."""
NOISE = 0.15
"""Of logits over int8 caches, relative to their standard deviation."""


@pytest.mark.parametrize("name", FIVE)
def test_turns_agree_with_transformers(name: str) -> None:
    assert_extends(Case(name, extend=True), (40, 32, 9, 1, 3, 30))


@pytest.mark.parametrize("name", FIVE)
def test_steps_of_two_tokens_agree_with_transformers(name: str) -> None:
    assert_verifies(Case(name, tokens_per_step=2))


@pytest.mark.parametrize("target", ["onnxruntime", "tensorrt-rtx"])
@pytest.mark.parametrize("name", FIVE)
def test_graphs_of_other_targets_agree_with_transformers(name: str, target: str) -> None:
    assert_agrees(Case(name, target=target), (1, 25, 96))


@pytest.mark.parametrize("name", FIVE)
def test_int8_caches_are_close_to_transformers(name: str) -> None:
    case = Case(name, cache_dtype="int8")
    want = cases.oracle(case, 40, 24)
    got = logits(build_of(case), [*want.prompt, *want.tokens[:24]], 40)
    assert 0 < noise(got[1:], want.decode_logits) < NOISE
