"""The built graphs of every verified architecture agree with transformers."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.graphs.test_cache_dtype import build_of, logits, noise
from tests.oracle import cases
from tests.oracle.cases import Case
from tests.oracle.checkpoints import MAX_POSITIONS
from tests.oracle.compare import (
    assert_agrees,
    assert_agrees_with_plain,
    assert_decodes,
    prefill_and_compress,
)

pytestmark = pytest.mark.slow

torch.set_num_threads(1)

MAIN = ("llama", "mistral", "qwen3", "gemma2")
OTHERS = ("llama-tied", "qwen2", "qwen2-tied", "qwen3-sliding", "gemma3")
EXPERTS = ("qwen3-moe", "qwen3-moe-sparse")
LATENT = ("deepseek-v2", "deepseek-v2-groups", "deepseek-v3")

Lengths = tuple[int, ...]


def _slow(value: object) -> Any:
    return pytest.param(value, marks=pytest.mark.slow)


LENGTHS = (1, 3, 12, 20, 21, 33, 64, 97, 160)
"""Below the sinks, below the ring's end, at it, one more, around the chunks of 32, at L_max."""
FEWER = (1, 12, 21, 33, 97, 160)
WINDOWS = (1, 8, 23, 24, 25, 33, 48, 49, 72, 95, 96)
"""Below the window, at its edges, at those of the chunks, and up to four windows long.

64 tokens are decoded after each: the longest sequence has over six windows."""
GPT_OSS = (1, 8, 23, 24, 25, 32, 33, 65, 95, 96)
"""Below, at and above the window, the chunks and the cache."""


TARGETS = ("onnxruntime", "portable", "openvino")


@pytest.mark.parametrize("target", [TARGETS[0], *(_slow(one) for one in TARGETS[1:])])
@pytest.mark.parametrize("width", [20, _slow(12), _slow(36)])
def test_heads_whose_width_is_not_a_multiple_of_8(width: int, target: str) -> None:
    case = Case(f"llama-{width}", target=target, L_max=160, baseline=True)
    assert_agrees(case, (12, 33, 97))
    assert_agrees_with_plain(cases.built(case, "baseline-"), case.checkpoint, (1, 65), str(case))


def with_baseline(name: str, **options: Any) -> Case:
    """The prompt and its 64 tokens fit into the baseline's cache up to a length of 96."""
    return Case(name, L_max=160, baseline=True, **options)


def parameters(rows: dict[Case, Lengths], *marks: pytest.MarkDecorator) -> Iterator[Any]:
    return (pytest.param(*row, id=str(row[0]), marks=marks) for row in rows.items())


ON_PORTABLE = [with_baseline(name, target="portable") for name in EXPERTS]
SLIDING = (
    Case("qwen2-sliding", prefill_chunk=25, target="portable"),
    Case("qwen3-sliding", prefill_chunk=23, policy="streaming"),
    Case("gemma2", prefill_chunk=24, target="portable", policy="streaming"),
    Case("gemma2", prefill_chunk=96),
    Case("gemma3", prefill_chunk=96, target="portable", L_recent=40),
)
LATENT_OPTIONS: tuple[dict[str, Any], ...] = (
    {"target": "portable"},
    {"prefill_chunk": 96},
    {"prefill_chunk": 16},
    {"prefill_chunk": 16, "target": "portable"},
    {"policy": "streaming"},
    {"vote": "sum-squares", "pool": "max"},
    {"softmax": "causal", "group": "max"},
    {"group": "sum"},
    {"budget": "pyramid"},
    {"share_weights": True},
)
"""Chunks of 32 expand keys and values, chunks of 16 absorb: these heads break even at 25 rows."""
GPT_OSS_OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"prefill_chunk": 25, "decode_attention": "valid"},
    {"prefill_chunk": 96, "target": "portable", "L_recent": 40},
    {"policy": "streaming", "target": "portable", "prefill_chunk": 24},
    {"target": "tensorrt", "prefill_chunk": 24},
    {"target": "tensorrt-rtx", "prefill_chunk": 96, "share_weights": True},
)
SLOW_BUILDS = (
    dict.fromkeys(map(with_baseline, (*OTHERS, *LATENT)), LENGTHS)
    | dict.fromkeys([*map(with_baseline, EXPERTS), *ON_PORTABLE], FEWER)
    | dict.fromkeys(SLIDING, WINDOWS)
    | {Case("deepseek-v3", **options): (12, 33, 90) for options in LATENT_OPTIONS}
    | {Case("gpt-oss", **options): GPT_OSS for options in GPT_OSS_OPTIONS}
)


@pytest.mark.parametrize(
    ("case", "lengths"),
    [
        *parameters(dict.fromkeys(map(with_baseline, MAIN), LENGTHS)),
        *parameters(SLOW_BUILDS, pytest.mark.slow),
    ],
)
def test_build_agrees_with_masked_transformers(case: Case, lengths: Lengths) -> None:
    assert_agrees(case, lengths)


SLOW_FULL_CACHES = {
    Case("gemma2", policy="full", L_max=160, target="portable"): (1, 25, 96),
    Case("gemma3", policy="full", L_max=160, prefill_chunk=160, target="portable"): (1, 25, 96),
    Case("gpt-oss", policy="full", L_max=160): (1, 25, 96),
    Case("gpt-oss", policy="full", L_max=160, prefill_chunk=160, target="portable"): (1, 25, 96),
    Case("gpt-oss", policy="full", L_max=160, target="tensorrt"): (1, 25, 96),
} | dict.fromkeys([*map(with_baseline, (*OTHERS, *EXPERTS, *LATENT)), *ON_PORTABLE], (1, 65, 96))


@pytest.mark.parametrize(
    ("case", "lengths"),
    [
        *parameters(dict.fromkeys(map(with_baseline, MAIN), (1, 65, 96))),
        *parameters({Case(prefill_chunk=96, baseline=True): (1, 17, 32)}),
        *parameters({Case(policy="full", L_max=160): (1, 64, 96)}),
        *parameters(SLOW_FULL_CACHES, pytest.mark.slow),
    ],
)
def test_full_cache_agrees_with_plain_transformers(case: Case, lengths: Lengths) -> None:
    """The baseline's, or that of a build with --policy full."""
    build = cases.built(case, "baseline-" if case.baseline else "")
    assert_agrees_with_plain(build, case.checkpoint, lengths, f"{case} full cache")


@pytest.mark.parametrize("name", ["llama", pytest.param("gemma3", marks=pytest.mark.slow)])
def test_decode_agrees_up_to_the_models_position_limit(name: str) -> None:
    case = with_baseline(name)
    want = cases.oracle(case, case.L_max, MAX_POSITIONS - case.L_max)
    build = cases.built(case)
    _, request = prefill_and_compress(build, want.prompt)
    assert_decodes(build, [request], [want], name)


@pytest.mark.slow
@pytest.mark.parametrize("softmax", ["candidates", "causal"])
def test_learned_sinks_take_no_part_in_the_vote(softmax: str) -> None:
    """The oracle's vote is a softmax of nothing but the keys' scores."""
    assert_agrees(Case("gpt-oss", softmax=softmax, vote="sum-squares"), (33, 96), steps=4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cache_dtype", "target", "most"),
    [("fp16", "onnxruntime", 0.02), ("fp16", "portable", 0.02), ("int8", "onnxruntime", 0.1)],
)
def test_gpt_oss_caches_in_fewer_bits_are_close_to_transformers(
    cache_dtype: str, target: str, most: float
) -> None:
    """More noise than in models without experts: rounding may choose another one."""
    case = Case("gpt-oss", cache_dtype=cache_dtype, target=target)
    want = cases.oracle(case, 40, 24)
    got = logits(build_of(case), [*want.prompt, *want.tokens[:24]], 40)
    assert 0 < noise(got[1:], want.decode_logits) < most
