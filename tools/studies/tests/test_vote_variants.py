"""`quality/vote_variants.py`: its simulation against the product, and its own ways of choosing."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from snapexport.contract.build_directory import Build
from snapexport.contract.slots import LayerGeometry
from snapexport.runtime.requests.llm import LLM
from tools.studies.quality.vote_variants import (
    CHOICES,
    Heads,
    Model,
    by_part,
    by_vote,
    held,
    sentences,
)

LAYER = LayerGeometry(L_sink=4, L_recent=8, K=12)


@pytest.mark.parametrize("length", [40, 60])
def test_the_simulation_loses_what_the_product_loses(
    checkpoint: Path, tiny_build: Build, length: int
) -> None:
    rng, geometry = np.random.default_rng(length), tiny_build.manifest.geometry
    prompt, rest = (rng.integers(3, 90, n).tolist() for n in (length, 6))
    model = Model(checkpoint, geometry.vote.L_obs)
    masks = []
    for heads, layer in zip(model.prefill(prompt), geometry.layers, strict=True):
        tokens = [""] * (length - layer.L_sink - layer.L_recent)
        options = {one: getattr(geometry.vote, one) for one in ("pool_kernel", "vote", "softmax")}
        kept = by_vote(heads, layer, tokens, **options)
        masks.append(held(heads, layer, kept, len(rest) - 1))
    score = LLM(tiny_build.directory).score(prompt, rest)[0]
    expected = [-one for one in score.logprobs[1:]]
    assert model.losses(rest, masks) == pytest.approx(expected, abs=2e-4)


@pytest.mark.parametrize("name", [name for name in CHOICES if name != "no vote"])
def test_every_choice_fills_the_slots_of_a_layer(name: str) -> None:
    tokens = [" word", " word", "."] * 20
    kept = CHOICES[name](states(4 + len(tokens) + 8), LAYER, tokens)
    assert kept.shape == (2, len(tokens))
    assert int(kept.sum()) == 2 * LAYER.K


def test_parts_are_kept_whole_and_the_last_one_is_cut() -> None:
    kept = by_part(states(68), LAYER, [""] * 56, size=8)
    of_parts = kept.reshape(2, 7, 8).sum(-1)
    assert [sorted(of_head)[-3:] for of_head in of_parts.tolist()] == [[0, 4, 8], [0, 4, 8]]


def test_a_sentence_ends_with_its_mark() -> None:
    assert list(sentences(["A", " b.", " C", "\n", "D"])) == [0, 0, 1, 1, 2]


def states(length: int) -> Heads:
    """Random states of 2 KV heads, 4 query heads, a window of 4."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    return Heads(normal(4, 4, 16), normal(2, length, 16), normal(2, length, 16), 0.25)
