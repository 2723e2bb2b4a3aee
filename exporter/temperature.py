"""Scales queries by their positions in layers without RoPE, as Llama 4 does.

transformers counts these positions from the length of its cache, which a graph doesn't have: here
they are those that the decoder gets.
"""

import functools
from typing import Any

import torch
from torch import Tensor

_TUNED = "attn_temperature_tuning"


def scale_by_positions(inside: Any) -> None:
    """Let a decoder scale queries by the positions that it is called with."""
    tuned = [
        part
        for part in inside.modules()
        if getattr(part, _TUNED, False) and not getattr(part, "use_rope", True)
    ]
    if not tuned:
        return
    positions: list[Tensor] = []
    inside.register_forward_pre_hook(functools.partial(_remember, positions), with_kwargs=True)
    for attention in tuned:
        setattr(attention, _TUNED, False)
        project = attention.q_proj.forward
        attention.q_proj.forward = functools.partial(_scaled, attention, project, positions)


def _remember(positions: list[Tensor], _: Any, __: tuple[Any, ...], given: dict[str, Any]) -> None:
    positions[:] = [given["position_ids"]]


def _scaled(attention: Any, project: Any, positions: list[Tensor], states: Tensor) -> Tensor:
    """Queries [B,C,H*D]: the scale of a token is the same for all its heads."""
    steps = torch.floor((positions[0].float() + 1.0) / attention.floor_scale)
    scale = torch.log1p(steps) * attention.attn_scale + 1.0
    queries: Tensor = project(states)
    scaled: Tensor = (queries * scale[..., None]).to(queries.dtype)
    return scaled
