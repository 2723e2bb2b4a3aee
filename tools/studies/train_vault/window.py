"""Teaches the end of a question to look at the asked entry, in every key-value head.

A cache that is pruned by what the last prompt tokens attend to keeps, in each key-value
head, only what those tokens saw there. A head that serves the later words of an answer
need not look at the entry so early by itself; this extra loss makes it do so.
"""

from __future__ import annotations

import torch
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import rotate_half

from tools.studies.train_vault.rows import TAUGHT, Batch
from tools.studies.train_vault.start import HEAD_SIZE, KV_HEADS


def window_loss(model: LlamaForCausalLM, batch: Batch, stream: torch.Tensor) -> torch.Tensor:
    """Return the mean negative log of the attention paid to the entry's first two values.

    `stream` is the input of the last layer. Attention is averaged over the query heads of
    a key-value head, as the pruning does.
    """
    asking = batch.places[:, ::TAUGHT]
    seen = _attention(model, stream, asking)
    first = _entries(batch.ids, asking)[:, :, None, None] + 2
    index = torch.cat([first, first + 1], dim=-1).expand(-1, -1, seen.shape[2], -1)
    each = seen.gather(-1, index).sum(-1)
    mass = each.view(*each.shape[:-1], KV_HEADS, -1).mean(-1)
    return -(mass + 1e-6).log().mean()


def _attention(model: LlamaForCausalLM, stream: torch.Tensor, asking: torch.Tensor) -> torch.Tensor:
    """Compute the last layer's attention of some places: row, place, head, position."""
    layer, size = model.model.layers[-1], HEAD_SIZE
    normed = layer.input_layernorm(stream)
    positions = torch.arange(stream.shape[1])
    cos, sin = (part[0, :, None] for part in model.model.rotary_emb(normed, positions[None]))
    rows = torch.arange(len(stream))[:, None]
    query = layer.self_attn.q_proj(normed[rows, asking]).unflatten(-1, (-1, size))
    query = query * cos[asking] + rotate_half(query) * sin[asking]
    key = layer.self_attn.k_proj(normed).unflatten(-1, (-1, size))
    key = key * cos + rotate_half(key) * sin
    key = key.repeat_interleave(query.shape[2] // key.shape[2], dim=2)
    scores = torch.einsum("bnhd,bthd->bnht", query, key) / size**0.5
    later = positions > asking[:, :, None, None]
    attention: torch.Tensor = scores.masked_fill(later, float("-inf")).softmax(-1)
    return attention


def _entries(ids: torch.Tensor, asking: torch.Tensor) -> torch.Tensor:
    """Find the entry of each question: its key stands there for the first time."""
    keys = ids.gather(1, asking - 1)
    return (ids[:, None, :] == keys[:, :, None]).int().argmax(-1)
