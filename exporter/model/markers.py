"""Replaces forwards of transformers' modules: experts, latent attention, RoPE, scaled queries.

Experts (MoE) become markers. Their routers are traced as they are, so that each architecture's
choice and weights are right by construction: a softmax over all or over the chosen, a sigmoid with
a bias and groups. transformers holds the gates' rows before the ups' rows, a build holds them in
turn (`weights/derived.py`): so the marker's weights have names of their own.

Latent attention (MLA) reads two weights that a checkpoint stores as one, kv_b_proj. RoPE becomes
ONNX's RotaryEmbedding. Queries of layers without RoPE are scaled by their positions (Llama 4):
transformers counts them from the length of its cache, which a graph doesn't have.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.onnx import ops as onnx_ops

from snapexport.exporter.model.decoder import Decoder, ExpertForm, Rope
from snapexport.graphs.markers import EXPERTS, LATENT_ATTENTION, TRACE_DOMAIN

APPLY, APPLY_COMPLEX = "apply_rotary_pos_emb", "apply_rotary_emb"
APPLY_INTERLEAVED = "apply_rotary_pos_emb_interleave"
"""transformers' names of functions that rotate."""

GATE_UP, DOWN = "gate_up", "down"
WEIGHTS = {
    "gate_up_proj": GATE_UP,
    "up_proj": "up",
    "down_proj": DOWN,
    "gate_up_proj_bias": "gate_up_bias",
    "down_proj_bias": "down_bias",
}
"""transformers' names of a module's weights -> the marker's, in the order of its inputs."""


def mark_experts(model: nn.Module, form: ExpertForm) -> None:
    """Replace the forward of every module of experts, which all have this form."""
    for module in model.modules():
        for part in module.children():
            if is_experts(part):
                _rename_weights(part, form.transposed)
                part.forward = functools.partial(_experts, part, form)
                if form.scaled_inputs:
                    module.forward = functools.partial(block_of_scaled_inputs, module)


def is_experts(module: nn.Module) -> bool:
    """Whether a module holds the weights of a layer's experts."""
    return type(module).__name__.endswith("Experts")


def sizes_of_expert(module: Any, transposed: bool) -> tuple[int, int]:
    """The size of what an expert reads, and its width, by transformers' stacks."""
    down = module.down_proj.shape
    hidden, width = (down[2], down[1]) if transposed else down[1:]
    return int(hidden), int(width)


def block_of_scaled_inputs(block: Any, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
    """A block whose experts read states times their weights: each chosen expert is a choice of one.

    transformers' own forward lets every expert read every token, nearly all of them times zero.
    """
    states = hidden_states.reshape(-1, hidden_states.shape[-1])
    scores, logits = block.router(states)
    weights, chosen = torch.topk(scores, block.top_k, dim=1)
    total = block.shared_expert(states)
    for weight, expert in zip(torch.split(weights, 1, 1), torch.split(chosen, 1, 1), strict=True):
        total = total + block.experts(states * weight, expert, torch.ones_like(weight))
    return total, logits


def _rename_weights(module: Any, transposed: bool) -> None:
    """Give a module the weights of the marker, in the layout [E,rows,columns]."""
    for stored, name in WEIGHTS.items():
        if (weight := getattr(module, stored, None)) is not None:
            delattr(module, stored)
            own = weight.mT if transposed and weight.ndim == 3 else weight
            empty = nn.Parameter(own.new_empty(own.shape), requires_grad=False)
            module.register_parameter(name, empty)


def _experts(
    module: Any,
    form: ExpertForm,
    hidden_states: Tensor,
    top_k_index: Tensor,
    top_k_weights: Tensor,
) -> Tensor:
    """Hidden states [N,H], the experts of each [N,k] and their weights [N,k] -> [N,H]."""
    weights = [getattr(module, name, None) for name in WEIGHTS.values()]
    routing = hidden_states, top_k_index, top_k_weights.to(hidden_states.dtype)
    return onnx_ops.symbolic(
        f"{TRACE_DOMAIN}::{EXPERTS}",
        (*routing, *(weight for weight in weights if weight is not None)),
        {
            "alpha": form.alpha,
            "beta": form.beta,
            "limit": form.limit,
            "activation": form.activation,
            "gated": int(form.gated),
        },
        dtype=hidden_states.dtype,
        shape=hidden_states.shape,
        version=1,
    )


def mark_latent_attention(model: Any) -> None:
    """Let every attention module hand attention its latents in the place of keys and values."""
    for module in model.modules():
        if is_latent(module):
            config, rank = module.config, module.config.kv_lora_rank
            heads, stored = module.num_heads, module.kv_b_proj.weight
            del module.kv_b_proj.weight
            shapes = {"key": (config.qk_nope_head_dim, rank), "value": (rank, config.v_head_dim)}
            for name, shape in shapes.items():
                part = nn.Parameter(stored.new_empty(heads, *shape), requires_grad=False)
                module.kv_b_proj.register_parameter(name, part)
            module.expand_kv = lambda latents, rotated: (latents, rotated)


def is_latent(module: Any) -> bool:
    """Whether an attention module projects latents up to keys and values."""
    return hasattr(module, "kv_b_proj")


def latent_marker(
    module: Any, query: Tensor, c_kv: Tensor, k_rope: Tensor, place: int, scale: float
) -> Tensor:
    """Queries [B,H,C,n+d] and latents [B,1,C,r] and [B,1,C,d] -> [B,C,H,v]."""
    up = module.kv_b_proj
    marked: Tensor = onnx_ops.symbolic(
        f"{TRACE_DOMAIN}::{LATENT_ATTENTION}",
        (query, c_kv, k_rope, up.key, up.value),
        {"layer": place, "scale": scale},
        dtype=query.dtype,
        shape=(query.shape[0], query.shape[2], query.shape[1], up.value.shape[2]),
        version=1,
    )
    return marked


def _rotate(form: Rope, states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """States [B,H,C,D] at angles of [B,C,...]."""
    cos, sin = angles_of(form, cos), angles_of(form, sin)
    rotated = 2 * cos.shape[-1]
    return onnx_ops.rotary_embedding(
        states,
        cos_cache=cos,
        sin_cache=sin,
        rotary_embedding_dim=rotated if rotated < states.shape[-1] else 0,  # 0: all of a head
        interleaved=form.interleaved,
    )


def _of_both(
    form: Rope, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, *_: Any, **__: Any
) -> tuple[Tensor, Tensor]:
    return _rotate(form, query, cos, sin), _rotate(form, key, cos, sin)


def _of_one(form: Rope, states: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> Tensor:
    """Rotate queries or keys [B,H,C,D], or [B,C,H,D] with unsqueeze_dim=2."""
    if unsqueeze_dim == 1:
        return _rotate(form, states, cos, sin)
    return _rotate(form, states.transpose(1, 2), cos, sin).transpose(1, 2)


def _of_complex(form: Rope, query: Tensor, key: Tensor, turns: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate by cosines and sines [2,B,C,D/2] in the place of complex numbers."""
    cos, sin = turns.unbind()
    turned = (_rotate(form, as_taken(form, one), cos, sin) for one in (query, key))
    query, key = (as_taken(form, one) for one in turned)
    return query, key


_FUNCTIONS: Mapping[str, tuple[str, Callable[..., Any]]] = {
    "both": (APPLY, _of_both),
    "one": (APPLY, _of_one),
    "complex": (APPLY_COMPLEX, _of_complex),
    "complex by head": (APPLY_COMPLEX, _of_complex),
}


@contextmanager
def mark_rope(modeling: Any, inside: Any, decoder: Decoder) -> Iterator[None]:
    """In this block a model's RoPE is the operator; without a form it stays as it is.

    inside: transformers' decoder.
    """
    marked: dict[str, Any] = {}
    if form := decoder.rope:
        name, function = _FUNCTIONS[form.takes]
        marked[name] = functools.partial(function, form)
    if other := decoder.interleaved_rope:
        marked[APPLY_INTERLEAVED] = functools.partial(_of_both, other)
    originals = {name: getattr(modeling, name) for name in marked}
    for name, function in marked.items():
        setattr(modeling, name, function)
    rotary: Any = getattr(inside, "rotary_emb", None)
    if form and form.of_text:
        rotary.forward = functools.partial(_angles_of_text, form, rotary)
    if APPLY_COMPLEX in marked:
        rotary.forward = lambda states, positions: torch.stack(cos_sin(rotary, states, positions))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(modeling, name, original)


def as_taken(form: Rope, states: Tensor) -> Tensor:
    """States [B,H,C,D] as a function of complex numbers takes them, or back."""
    return states.transpose(1, 2) if form.takes == "complex" else states


def cos_sin(rotary: Any, states: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines [B,C,d/2] of a RoPE over d numbers."""
    angles = position_ids[..., None].float() * rotary.inv_freq.float()
    turned = (angles.cos(), angles.sin())
    cos, sin = ((table * rotary.attention_scaling).to(states.dtype) for table in turned)
    return cos, sin


def _angles_of_text(
    form: Rope, rotary: Any, states: Tensor, positions: Tensor
) -> tuple[Tensor, Tensor]:
    """Cosines and sines as the model has them, of positions [B,C], or of axes that are all alike.

    A section without width has no form in some runtimes.
    """
    cos, sin = cos_sin(rotary, states, positions[0] if positions.ndim > 2 else positions)
    if form.frequencies == "halves":
        return torch.cat((cos, cos), -1), torch.cat((sin, sin), -1)
    times = 2 if form.frequencies == "steps" else 1
    return cos.repeat_interleave(times, -1), sin.repeat_interleave(times, -1)


def angles_of(form: Rope, table: Tensor) -> Tensor:
    """A table of cosines or sines [B,C,n] with one number for each pair."""
    if form.frequencies == "halves":
        return table[..., : table.shape[-1] // 2]
    return table[..., ::2] if form.frequencies == "steps" else table


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
        attention.q_proj.forward = functools.partial(_scale, attention, project, positions)


def _remember(positions: list[Tensor], _: Any, __: tuple[Any, ...], given: dict[str, Any]) -> None:
    positions[:] = [given["position_ids"]]


def _scale(attention: Any, project: Any, positions: list[Tensor], states: Tensor) -> Tensor:
    """Queries [B,C,H*D]: the scale of a token is the same for all its heads."""
    steps = torch.floor((positions[0].float() + 1.0) / attention.floor_scale)
    scale = torch.log1p(steps) * attention.attn_scale + 1.0
    queries: Tensor = project(states)
    scaled: Tensor = (queries * scale[..., None]).to(queries.dtype)
    return scaled
