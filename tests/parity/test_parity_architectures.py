"""The built graphs of every verified architecture agree with transformers."""

import pytest
import torch

from tests.oracle import cases
from tests.oracle.cases import Case
from tests.oracle.checkpoints import MAX_POSITIONS
from tests.oracle.compare import (
    assert_agrees,
    assert_agrees_with_plain,
    assert_decodes,
    prefill_and_compress,
)

torch.set_num_threads(1)

MAIN = ("llama", "llama-tied", "mistral", "qwen2", "qwen2-tied", "qwen3")
MAIN += ("qwen3-sliding", "gemma2", "gemma3")
LENGTHS = (1, 3, 12, 20, 21, 33, 64, 97, 160)
"""Below the sinks, below the ring's end, at it, one more, around the chunks of 32, at L_max."""


def with_baseline(name: str) -> Case:
    """The prompt and its 64 tokens fit into the baseline's cache up to a length of 96."""
    return Case(name, L_max=160, baseline=True)


@pytest.mark.parametrize("name", MAIN)
def test_build_of_every_architecture_agrees_with_transformers(name: str) -> None:
    assert_agrees(with_baseline(name), LENGTHS)


@pytest.mark.parametrize("name", MAIN)
def test_baseline_of_every_architecture_agrees_with_plain_transformers(name: str) -> None:
    build = cases.built(with_baseline(name), "baseline-")
    assert_agrees_with_plain(build, name, (1, 65, 96), f"{name} baseline")


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3"])
def test_decode_agrees_up_to_the_models_position_limit(name: str) -> None:
    case = with_baseline(name)
    want = cases.oracle(case, case.L_max, MAX_POSITIONS - case.L_max)
    build = cases.built(case)
    _, request = prefill_and_compress(build, want.prompt)
    assert_decodes(build, [request], [want], name)
