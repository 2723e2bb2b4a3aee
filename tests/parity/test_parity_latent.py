"""DeepSeek: latent attention agrees with transformers, whose heads attend to expanded keys.

The first layer has one MLP, the others have experts.
"""

import pytest
import torch

from tests.oracle import cases
from tests.oracle.cases import Case
from tests.oracle.compare import assert_agrees, assert_agrees_with_plain
from tests.parity.test_parity_architectures import LENGTHS, with_baseline

torch.set_num_threads(1)
pytestmark = pytest.mark.slow

LATENT = ("deepseek-v2", "deepseek-v2-groups", "deepseek-v3")


@pytest.mark.parametrize("name", LATENT)
def test_build_agrees_with_transformers(name: str) -> None:
    assert_agrees(with_baseline(name), LENGTHS)


@pytest.mark.parametrize("name", LATENT)
def test_baseline_agrees_with_plain_transformers(name: str) -> None:
    build = cases.built(with_baseline(name), "baseline-")
    assert_agrees_with_plain(build, name, (1, 65, 96), f"{name} baseline")


# Chunks of 32 expand keys and values, chunks of 16 absorb: these heads break even at 25 rows.
VARIANTS = [
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
]


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_every_policy_and_vote_works_on_latents(options: dict[str, object]) -> None:
    assert_agrees(Case("deepseek-v3", **options), (12, 33, 90))  # type: ignore[arg-type]
