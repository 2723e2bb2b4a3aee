"""Runs kvpress on a tiny random Llama, and records kept positions, queries and keys.

Kept positions are found by looking up each key of the compressed cache in the full one.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from kvpress import PyramidKVPress, SnapKVPress  # type: ignore[import-not-found,unused-ignore]
from torch import Tensor
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM
from transformers.models.llama import modeling_llama

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "dtype": "float32",
}


@dataclass(frozen=True)
class Press:
    """One run: a prompt of `length` tokens, and a cache of `capacity`, the window among them."""

    name: str
    length: int
    window: int
    kernel: int
    capacity: int

    @property
    def ratio(self) -> float:
        """The share to drop: kvpress knows no fixed size, and rounds down."""
        return 1 - (self.capacity + 0.5) / self.length


@dataclass
class Run:
    """Per layer: query [H, L, D] and key [Hkv, L, D] after RoPE, scores and positions by head."""

    query: list[Tensor]
    key: list[Tensor]
    scores: list[Tensor]
    kept: list[Tensor]


def tiny_llama(seed: int) -> LlamaForCausalLM:
    """A random model whose attention is far from uniform; weights that float16 holds exactly."""
    model: LlamaForCausalLM = LlamaForCausalLM(LlamaConfig(**CONFIG)).eval()
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        drawn = torch.randn(parameter.shape, generator=generator)
        parameter.data = _weights(name, drawn).half().float()
    return model


def _weights(name: str, drawn: Tensor) -> Tensor:
    if drawn.dim() == 1:
        return 1 + drawn / 8
    sharp = 1.6 if "q_proj" in name or "k_proj" in name else 1.0
    return drawn * sharp / math.sqrt(drawn.shape[1])


@torch.no_grad()
def run(model: LlamaForCausalLM, ids: Tensor, press: Press) -> Run:
    """Prefill twice: plainly, then under the press."""
    full: Any = DynamicCache(config=model.config)
    squeezed: Any = DynamicCache(config=model.config)
    with _queries_seen() as queries:
        model(ids[None], past_key_values=full)
    method = _method(press)
    with method(model):
        model(ids[None], past_key_values=squeezed)
    keys = [layer.keys[0] for layer in full.layers]
    kept = [
        _found(short.keys[0], key, press) for short, key in zip(squeezed.layers, keys, strict=True)
    ]
    return Run(queries, keys, method.seen, kept)


def budgets(layers: int, K: int, window: int, length: int) -> list[int]:
    """Positions that PyramidKVPress keeps of each layer, the window among them."""
    press = PyramidKVPress(compression_ratio=1 - K / length, window_size=window)
    config = SimpleNamespace(num_hidden_layers=layers)
    modules = [SimpleNamespace(config=config, layer_idx=layer) for layer in range(layers)]
    return [press.get_layer_budget(module, length) for module in modules]


def _method(press: Press) -> Any:
    """The press of that name, remembering the scores that it gives before the window."""
    base = PyramidKVPress if press.name == "pyramid" else SnapKVPress

    class Remembering(base):  # type: ignore[misc,valid-type]
        def score(self, *args: Any, **kwargs: Any) -> Tensor:
            scores: Tensor = super().score(*args, **kwargs)
            self.seen.append(scores[0, :, : -press.window].double())
            return scores

    method = Remembering(press.ratio, press.window, press.kernel)
    method.seen = []
    return method


@contextmanager
def _queries_seen() -> Iterator[list[Tensor]]:
    """Catches each layer's queries [H, L, D] where the model rotates them."""
    rotate, seen = modeling_llama.apply_rotary_pos_emb, []

    def rotating(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        query, key = rotate(*args, **kwargs)
        seen.append(query[0])
        return query, key

    modeling_llama.apply_rotary_pos_emb = rotating
    try:
        yield seen
    finally:
        modeling_llama.apply_rotary_pos_emb = rotate


def _found(short: Tensor, full: Tensor, press: Press) -> Tensor:
    """Where each key [Hkv, S, D] stands in [Hkv, L, D], ascending, without the window."""
    nearest = (short[:, :, None] - full[:, None]).abs().amax(-1).min(-1)
    assert nearest.values.max() == 0, "a key that the prompt does not have"
    positions = nearest.indices.sort(-1).values
    window = torch.arange(press.length - press.window, press.length)
    assert (positions[:, -press.window :] == window).all(), "the window is not whole"
    return positions[:, : -press.window]
