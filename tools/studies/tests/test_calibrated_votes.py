"""`quality/calibrated_votes.py`: its scores against RoPE as transformers applies it."""

import argparse

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from snapexport.contract.slots import LayerGeometry
from tools.studies.quality.calibrated_outputs import UNCOMPRESSED, along
from tools.studies.quality.calibrated_votes import (
    FAR,
    NEAR,
    calibrated,
    choices,
    expected,
    trigonometric,
)
from tools.studies.quality.vote_variants import Heads

LAYER = LayerGeometry(L_sink=4, L_recent=8, K=12)
LENGTH, DIM, THETA = 40, 16, 10000.0


def rotated(states: Tensor, positions: Tensor) -> Tensor:
    """States [H,N,D] after RoPE, by transformers."""
    config = LlamaConfig(
        head_dim=DIM, rope_parameters={"rope_type": "default", "rope_theta": THETA}
    )
    cos, sin = LlamaRotaryEmbedding(config)(states[None], positions[None])
    return apply_rotary_pos_emb(states[None], states[None], cos, sin)[0][0]


def heads(seed: int = 0, same: bool = False) -> tuple[Heads, Tensor]:
    """A prompt's states, and its queries before RoPE; with `same` all of a head are alike."""
    torch.manual_seed(seed)
    queries = torch.randn(4, 1 if same else LENGTH, DIM).expand(4, LENGTH, DIM)
    keys, values = torch.randn(2, 2, LENGTH, DIM)
    positions = torch.arange(LENGTH)
    return Heads(rotated(queries, positions), rotated(keys, positions), values, 0.25), queries


def test_calibration_finds_the_queries_before_rope() -> None:
    states, queries = heads(same=True)
    (known,) = calibrated([states], THETA)
    first, second = queries[:, 0].double().chunk(2, -1)
    torch.testing.assert_close(known.mean, torch.complex(first, second), atol=1e-5, rtol=0)
    torch.testing.assert_close(known.magnitude, known.mean.abs(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("way", ["trigonometric", "expected"])
def test_scores_of_steady_queries_are_their_products_with_the_keys(way: str) -> None:
    states, queries = heads(same=True)
    (known,) = calibrated([states], THETA)
    steps = torch.tensor(FAR if way == "trigonometric" else NEAR) + LENGTH - 1
    ahead = rotated(queries[:, :1].expand(4, len(steps), DIM), steps).mean(1)
    span = slice(LAYER.L_sink, LENGTH - LAYER.L_recent)
    products = torch.einsum("hd,hnd->hn", ahead, states.keys[:, span].repeat_interleave(2, 0))
    if way == "trigonometric":
        own = (products - products.mean(-1, keepdim=True)) / products.std(-1, keepdim=True)
        want = own.reshape(2, 2, -1).amax(1)
        found = trigonometric(states, LAYER, known, THETA)
    else:
        attention = (products * states.scale).softmax(-1).reshape(2, 2, -1).mean(1)
        want = attention * states.values[:, span].norm(dim=-1)
        found = expected(states, LAYER, known, THETA)
    torch.testing.assert_close(found.float(), want, atol=2e-3, rtol=1e-3)


def test_every_choice_scores_what_can_be_kept() -> None:
    states, _ = heads()
    (known,) = calibrated([states], THETA)
    for _, scores in choices(states, LAYER, known, THETA):
        assert scores.shape == (2, LENGTH - 12)
        assert torch.isfinite(scores).all()


def test_an_output_is_compressed_from_what_was_kept_and_what_left_the_ring() -> None:
    states, _ = heads()
    (known,) = calibrated([states], THETA)
    given = argparse.Namespace(prompt=27, every=4, window=2)
    for name, seen in along(states, LAYER, known, THETA, given).items():
        assert seen.shape == (2, LENGTH - 1 - 27, LENGTH - 1)
        for row, now in enumerate(range(27, LENGTH - 1)):
            assert not seen[:, row, now + 1 :].any()
            assert (seen[:, row].sum(-1) == LAYER.size).all()
            if row and name != UNCOMPRESSED:
                before = seen[:, row - 1] | (torch.arange(LENGTH - 1) == now)
                assert not (seen[:, row] & ~before).any() or row % 4 == 0
