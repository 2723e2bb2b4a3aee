"""Confirms multi-head latent attention (MLA), and which channels its RoPE pairs, by numbers."""

import copy
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface

from snapexport.errors import UserError
from snapexport.exporter.architectures.decoder import Rope
from snapexport.exporter.latent_attention import queries_of
from snapexport.exporter.probe.rope import rotated

_NEEDED = ("kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj", "o_proj")
_KNOWN = (*_NEEDED, "q_proj", "q_a_proj", "q_a_layernorm", "q_b_proj")
_IMPLEMENTATION = "snapexport_probe_scores"
_SMALL = {"hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2, "kv_lora_rank": 8}
_TOKENS = 5
_ABSOLUTE = 1e-4
_OTHER = "only latent attention as of DeepSeek-V2 and V3 can be built"

_attended: list[tuple[Tensor, Tensor]] = []


def _remember(_: Any, query: Tensor, key: Tensor, value: Tensor, *__: Any, **___: Any) -> Any:
    _attended.append((query, key))
    return query.new_zeros(*query.shape[:1], query.shape[2], query.shape[1], value.shape[-1]), None


AttentionInterface.register(_IMPLEMENTATION, _remember)


def is_latent(model: Any) -> bool:
    """Whether layers project latents up to keys and values."""
    return any(hasattr(module, "kv_b_proj") for module in model.modules())


def interleaves(model: Any, decoder: str) -> bool:
    """Whether RoPE turns channels 2i and 2i + 1 of queries and keys. Raises UserError."""
    module: Any = next(module for module in model.modules() if hasattr(module, "kv_b_proj"))
    name = type(module).__name__
    weighted = {part for part, inner in module.named_children() if list(inner.parameters())}
    if not set(_NEEDED) <= weighted <= set(_KNOWN):
        raise UserError(f"the model's latent attention ({name}) has other parts", _OTHER)
    try:
        found = _interleaves(module, model.get_submodule(decoder).rotary_emb)
    except Exception:  # it takes other inputs
        found = None
    if found is None:
        raise UserError(f"the model's latent attention ({name}) scores in another way", _OTHER)
    return found


@torch.no_grad()
def _interleaves(module: Any, rotary: Any) -> bool | None:
    """The pairing whose scores of rotated channels are those of a small module."""
    config = copy.deepcopy(module.config)
    for field, size in _SMALL.items():
        setattr(config, field, size)
    if config.q_lora_rank is not None:
        config.q_lora_rank = _SMALL["kv_lora_rank"]
    config._attn_implementation = _IMPLEMENTATION
    torch.manual_seed(0)
    small, real = type(module)(config, 0).eval(), type(rotary)(config)
    for norm in (part for part in small.modules() if hasattr(part, "variance_epsilon")):
        norm.weight.fill_(1.0)
    states, positions = torch.randn(1, _TOKENS, config.hidden_size), torch.arange(_TOKENS)[None]
    _attended.clear()
    small(
        hidden_states=states,
        position_embeddings=real(states, positions),
        attention_mask=None,
    )
    ((query, key),) = _attended
    nope = config.qk_nope_head_dim
    expected = query[..., nope:] @ key[..., nope:].mT
    angles = positions[..., None].float() * real.inv_freq.float()
    cos, sin = (turn * real.attention_scaling for turn in (angles.cos(), angles.sin()))
    queries = queries_of(small, states).view(1, _TOKENS, 2, -1).transpose(1, 2)[..., nope:]
    keys = small.kv_a_proj_with_mqa(states)[:, None, :, config.kv_lora_rank :]
    for interleaved in (True, False):
        form, channels = Rope("pairs", interleaved), 2 * angles.shape[-1]
        turned = [rotated(form, part, cos, sin, channels) for part in (queries, keys)]
        if float((turned[0] @ turned[1].mT - expected).abs().max()) < _ABSOLUTE:
            return interleaved
    return None
