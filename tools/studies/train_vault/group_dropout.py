"""Dropout of whole key-value heads, so that each of them learns the look-up by itself.

A cache pruned for each KV head by itself is only as good as its worst head. Without this dropout,
this small model splits the work: one head finds the entry while the prompt is read, the other while
the answer is written. Nothing here tells a head which position to attend to.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from transformers import LlamaForCausalLM

from tools.studies.train_vault.start import KV_HEADS


def install(model: LlamaForCausalLM, share: float) -> None:
    """Silence, while the model trains, one of the last layer's heads in this share of the rows."""
    projection = model.model.layers[-1].self_attn.o_proj
    projection.register_forward_pre_hook(partial(_silence, share))


def _silence(
    share: float, projection: nn.Module, inputs: tuple[torch.Tensor]
) -> tuple[torch.Tensor] | None:
    """Attention's output [rows, tokens, heads * size], the heads of a group side by side."""
    if not projection.training:
        return None
    (attended,) = inputs
    rows, tokens, _ = attended.shape
    grouped = attended.view(rows, tokens, KV_HEADS, -1)
    silent = torch.randint(KV_HEADS, (rows, 1)) == torch.arange(KV_HEADS)
    heard = ~(silent & (torch.rand(rows, 1) < share))
    return ((grouped * heard[:, None, :, None]).flatten(-2),)
