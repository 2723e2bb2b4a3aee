"""Confirms multi-head latent attention (MLA): what attention reads is projected up from latents."""

import copy
from collections.abc import Sequence
from typing import Any

import torch

from snapexport.errors import UserError
from snapexport.exporter.architectures.decoder import Layer
from snapexport.exporter.latent_attention import is_latent
from snapexport.exporter.probe.attention import Recorded

_SMALL = {"hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2, "kv_lora_rank": 8}
_TOKENS = 5
_ABSOLUTE = 1e-4
_OTHER = "only latent attention whose heads read [W_UK c_kv, k_rope] and W_UV c_kv can be built"


def has_latents(model: Any, recorded: Recorded, layers: Sequence[Layer]) -> bool:
    """Whether layers attend to latents. Raises UserError for those of another form."""
    latent = [module for module in model.modules() if is_latent(module)]
    if not latent:
        return False
    name = type(latent[0]).__name__
    if len({type(module) for module in latent}) > 1 or len(latent) != len(recorded.calls):
        raise UserError("some of the model's layers attend to latents, and others don't", _OTHER)
    expanded = {(id(key), id(value)) for key, value in recorded.expanded}
    if not {(id(call.key), id(call.value)) for call in recorded.calls} <= expanded:
        raise UserError(f"the model's latent attention ({name}) has other parts", _OTHER)
    if any(one.window or one.chunk or one.sinks or one.softcapped for one in layers):
        raise UserError(f"the model's latent attention ({name}) has windows or sinks", _OTHER)
    try:
        fits = _expands(latent[0])
    except Exception:  # it takes other inputs
        fits = False
    if not fits:
        raise UserError(f"the model's latent attention ({name}) has keys of another form", _OTHER)
    return True


@torch.no_grad()
def _expands(module: Any) -> bool:
    """Whether a small module projects latents up as the marker does (graphs/markers.py)."""
    config = copy.deepcopy(module.config)
    for field, size in _SMALL.items():
        setattr(config, field, size)
    if config.q_lora_rank is not None:
        config.q_lora_rank = _SMALL["kv_lora_rank"]
    torch.manual_seed(0)
    small, rank, nope = type(module)(config, 0), config.kv_lora_rank, config.qk_nope_head_dim
    up = small.kv_b_proj.weight.view(2, -1, rank)
    c_kv = torch.randn(1, 1, _TOKENS, rank)
    k_rope = torch.randn(1, 1, _TOKENS, config.qk_rope_head_dim)
    expected = small.expand_kv(c_kv, k_rope)
    keys = torch.cat((c_kv @ up[:, :nope].mT, k_rope.expand(-1, 2, -1, -1)), -1)
    found = keys, c_kv @ up[:, nope:].mT
    return all(
        one.shape == other.shape and bool((one - other).abs().max() < _ABSOLUTE)
        for one, other in zip(found, expected, strict=True)
    )
