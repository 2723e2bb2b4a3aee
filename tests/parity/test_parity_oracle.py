"""The oracle itself, against plain transformers, explicit 4-D masks, and loops."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoModelForCausalLM

from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.records import GeometryRecord
from snapexport.contract.slots import LayerGeometry, Slots
from snapexport.contract.vote import Vote
from tests.oracle import cases, masked
from tests.oracle.checkpoints import ARCHITECTURES
from tests.oracle.vote import keep, vote

torch.set_num_threads(1)

CLOSE = 5e-4
"""Of two ways through transformers, whose kernels round differently: by host, up to 1.1e-4."""


def geometry(name: str, sink: int, recent: int, K: int, window: int = 8) -> CacheGeometry:
    layers = masked.load(cases.checkpoint(name), "eager").config.num_hidden_layers
    return GeometryRecord("snapstream", 96, layers, sink, recent, K, window, 5).geometry()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_oracle_with_a_large_ring_equals_plain_transformers(name: str) -> None:
    want = cases.plain(name, 70)
    got = masked.run(cases.checkpoint(name), want.prompt, geometry(name, 4, 200, 12), cases.STEPS)
    assert np.abs(got.prefill_logits - want.prefill_logits).max() < CLOSE
    assert np.abs(got.decode_logits - want.decode_logits).max() < CLOSE
    assert got.tokens == want.tokens


@pytest.mark.parametrize(
    ("name", "attention"),
    [
        *((name, "sdpa") for name in ("llama-tied", "mistral", "qwen3")),
        *((name, "eager") for name in ("mistral-sliding", "gemma2", "gemma3")),
    ],
)
def test_oracle_plain_decoding_equals_generate(name: str, attention: str) -> None:
    """generate's cache drops positions outside of sliding windows; the oracle's keeps them."""
    want = cases.plain(name, 70)
    model = masked.load(cases.checkpoint(name), attention)
    options: dict[str, Any] = {"do_sample": False, "eos_token_id": 999, "pad_token_id": 0}
    out = model.generate(torch.tensor([want.prompt]), max_new_tokens=60, **options)
    assert out[0, 70:].tolist() == want.tokens[:60]


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize(
    ("sink", "recent", "K"), [(4, 16, 0), (0, 8, 0), (4, 16, 12), (2, 8, 30), (2, 8, 52)]
)
def test_oracle_masking_equals_one_forward_with_explicit_masks(
    name: str, sink: int, recent: int, K: int
) -> None:
    ids = cases.prompt(60)
    got = masked.run(cases.checkpoint(name), ids, geometry(name, sink, recent, K), cases.STEPS)
    ring = recent + K if sink + recent + K >= 60 else recent
    masks = [explicit_mask(60, 60 + cases.STEPS, sink, ring, kept) for kept in got.topk_positions]
    logits = one_forward(cases.checkpoint(name), [*ids, *got.tokens[:-1]], masks)
    assert np.abs(logits[59] - got.prefill_logits).max() < 1e-4
    assert np.abs(logits[60:] - got.decode_logits).max() < 1e-4


def explicit_mask(
    length: int, total: int, sink: int, recent: int, kept: NDArray[np.int64]
) -> Tensor:
    """Additive [1, Hkv, total, total], filled position by position from what a ring still holds."""
    mask = np.full((len(kept), total, total), -np.inf, np.float32)
    ring: dict[int, int] = {}
    for position in range(total):
        if position >= sink:
            ring[(position - sink) % recent] = position
        for head, positions in enumerate(kept):
            seen = list(range(min(sink, position + 1))) + list(ring.values()) + positions.tolist()
            seen = list(range(position + 1)) if position < length else seen
            mask[head, position, [p for p in seen if p >= 0]] = 0
    return torch.tensor(mask)[None]


@torch.no_grad()
def one_forward(model_dir: Path, ids: Sequence[int], masks: Sequence[Tensor]) -> NDArray[Any]:
    """Logits [N, V] of transformers' eager attention, each layer with a mask of its own."""
    model = AutoModelForCausalLM.from_pretrained(
        model_dir, dtype=torch.float32, attn_implementation="eager"
    )
    groups = model.config.num_attention_heads // model.config.num_key_value_heads
    for layer, mask in zip(model.model.layers, masks, strict=True):
        layer.self_attn.register_forward_pre_hook(
            _replacing_mask(mask.repeat_interleave(groups, 1)), with_kwargs=True
        )
    return model(torch.tensor([list(ids)]), use_cache=False).logits[0].numpy()


def _replacing_mask(mask: Tensor) -> Callable[..., Any]:
    return lambda _, args, options: (args, options | {"attention_mask": mask})


SHAPES = [
    (4, 16, 12, 8, 5, 90),
    (0, 8, 7, 8, 7, 50),
    (2, 4, 9, 1, 1, 33),
    (1, 6, 40, 3, 5, 48),
    (3, 5, 4, 5, 7, 13),
    (3, 5, 4, 5, 7, 12),
]


@pytest.mark.parametrize(
    ("softmax", "power"), [("candidates", 1), ("candidates", 2), ("causal", 2)]
)
@pytest.mark.parametrize(("sink", "recent", "K", "window", "pool", "length"), SHAPES)
def test_oracle_vote_equals_a_vote_counted_in_loops(
    sink: int,
    recent: int,
    K: int,
    window: int,
    pool: int,
    length: int,
    softmax: str,
    power: int,
) -> None:
    query, key = random_attention(length)
    layer = LayerGeometry(sink, recent, K)
    options = counted(layer, window, pool, {1: "sum", 2: "sum-squares"}[power], softmax)
    scores = vote(query[:, -window:], key, layer, options, 0.25)
    slow = looped_vote(query.numpy(), key.numpy(), layer, options.vote, power)
    assert scores.shape == slow.shape
    assert np.allclose(scores, slow, rtol=1e-9)
    for got, row in zip(keep(scores, layer).tolist(), slow, strict=True):
        best = sorted(range(len(row)), key=lambda j: (-row[j], j))[:K]
        assert got == sorted(j + sink for j in best) + [-1] * (K - len(best))


def counted(layer: LayerGeometry, window: int, pool: int, vote: str, softmax: str) -> CacheGeometry:
    slots = Slots(1, layer.L_sink, layer.L_recent, layer.K)
    return CacheGeometry("snapstream", 256, slots, Vote(window, pool, vote, softmax=softmax))


def random_attention(length: int) -> tuple[Tensor, Tensor]:
    """Queries [4, L, 16] and keys [2, L, 16], float64: far from uniform."""
    generator = torch.Generator().manual_seed(length)
    both = 2 * torch.randn(6, length, 16, generator=generator).double()
    return both[:4], both[4:]


def looped_vote(
    query: NDArray[Any],
    key: NDArray[Any],
    layer: LayerGeometry,
    options: Vote,
    power: int,
) -> NDArray[Any]:
    """[Hkv, n], one number at a time."""
    groups, length = len(query) // len(key), key.shape[1]
    is_whole = length <= layer.L_sink + layer.L_recent + layer.K
    eligible = range(layer.L_sink, layer.L_sink if is_whole else length - layer.L_recent)
    pool = options.pool_kernel
    scores = np.zeros((len(key), len(eligible)))
    for head, q in enumerate(query):
        votes = np.zeros(len(eligible))
        for i in range(length - options.L_obs, length):
            seen = eligible if options.softmax == "candidates" else range(i + 1)
            total = sum(np.exp(q[i] @ key[head // groups, p] / 4) for p in seen)
            weights = np.exp([q[i] @ key[head // groups, p] / 4 for p in eligible])
            votes += (weights / total) ** power
        for j in range(len(eligible)):
            near = [k for k in range(j - pool // 2, j + pool // 2 + 1) if 0 <= k < len(votes)]
            scores[head // groups, j] += votes[near].sum() / pool / groups
    return scores


def test_oracle_vote_keeps_the_positions_of_kvpress_scores() -> None:
    """SnapKVPress.score, restricted to the eligible positions: its mean is our sum over W."""
    query, key = random_attention(90)
    eligible = key[:, 4:-16].repeat_interleave(2, 0)
    attention = (query[:, -8:] @ eligible.mT / 4).softmax(-1)
    scores = torch.nn.functional.avg_pool1d(attention.mean(-2), 5, padding=2, stride=1)
    want = scores.view(2, 2, -1).mean(1).topk(12).indices.sort(-1).values + 4
    layer = LayerGeometry(4, 16, 12)
    options = counted(layer, 8, 5, "sum", "candidates")
    assert torch.equal(keep(vote(query[:, -8:], key, layer, options, 0.25), layer), want)


def test_oracle_vote_ties_go_to_the_lower_position() -> None:
    scores = torch.tensor([[1.0, 2.0, 2.0, 1.0, 2.0], [1.0, 1.0, 1.0, 1.0, 1.0]])
    assert keep(scores, LayerGeometry(3, 1, 2)).tolist() == [[4, 5], [3, 4]]
