"""gpt-oss: learned sinks, alternating windows and YaRN agree with transformers."""

from typing import Any

import pytest
import torch

from tests.graphs.test_cache_dtype import build_of, logits, noise
from tests.oracle import cases
from tests.oracle.cases import Case
from tests.oracle.compare import assert_agrees, assert_agrees_with_plain

torch.set_num_threads(1)
pytestmark = pytest.mark.slow

LENGTHS = (1, 8, 23, 24, 25, 32, 33, 65, 95, 96)
"""Below, at and above the window, the chunks and the cache."""

CASES = (
    {},
    {"prefill_chunk": 25, "decode_attention": "valid"},
    {"prefill_chunk": 96, "target": "portable", "L_recent": 40},
    {"policy": "streaming", "target": "portable", "prefill_chunk": 24},
    {"target": "tensorrt", "prefill_chunk": 24},
    {"target": "tensorrt-rtx", "prefill_chunk": 96, "share_weights": True},
)


def gpt_oss(**options: Any) -> Case:
    return Case("gpt-oss", **options)


@pytest.mark.parametrize("options", CASES, ids=str)
def test_build_agrees_with_the_oracle(options: dict[str, Any]) -> None:
    assert_agrees(gpt_oss(**options), LENGTHS)


@pytest.mark.parametrize("softmax", ["candidates", "causal"])
def test_learned_sinks_take_no_part_in_the_vote(softmax: str) -> None:
    """The oracle's vote is a softmax of the keys' scores alone."""
    assert_agrees(gpt_oss(softmax=softmax, vote="sum-squares"), (33, 96), steps=4)


FULL = (
    {"target": "onnxruntime"},
    {"target": "portable", "prefill_chunk": 160},
    {"target": "tensorrt"},
)


@pytest.mark.parametrize("options", FULL, ids=str)
def test_full_cache_agrees_with_plain_transformers(options: dict[str, Any]) -> None:
    case = gpt_oss(policy="full", L_max=160, **options)
    assert_agrees_with_plain(cases.built(case), "gpt-oss", (1, 25, 96), str(case))


@pytest.mark.parametrize(
    ("cache_dtype", "target", "most"),
    [("fp16", "onnxruntime", 0.02), ("fp16", "portable", 0.02), ("int8", "onnxruntime", 0.1)],
)
def test_caches_in_fewer_bits_are_close_to_transformers(
    cache_dtype: str, target: str, most: float
) -> None:
    """More noise than in models without experts: rounding may choose another one."""
    case = gpt_oss(cache_dtype=cache_dtype, target=target)
    want = cases.oracle(case, 40, 24)
    got = logits(build_of(case), [*want.prompt, *want.tokens[:24]], 40)
    assert 0 < noise(got[1:], want.decode_logits) < most
