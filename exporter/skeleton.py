"""Makes a checkpoint's transformers model without weights and with markers for attention.

All tensors are fake (shape and dtype, no memory). While the model is traced, attention becomes a
marker that `graphs/` replaces, and RoPE and RMSNorm become the standard ONNX operators, which no
exporter emits by itself. Differences between architectures are in their records.
"""

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.onnx import ops as onnx_ops
from transformers import AttentionInterface, AutoModelForCausalLM, PretrainedConfig

from snapexport.exporter.architectures import RMSNorm, architecture_of, window_of
from snapexport.exporter.experts import mark_experts
from snapexport.exporter.latent_attention import mark_latent_attention
from snapexport.graphs.markers import ATTENTION, TRACE_DOMAIN

ATTENTION_IMPLEMENTATION = "snapexport_marker"


def _attention_marker(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *_: Any,
    scaling: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **__: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers calls it: [B,H,C,D] and [B,Hkv,C,D] in, [B,C,H,D] out.

    Queries and keys arrive after RoPE; caches hold such keys. s_aux: the sink of each head, [H].
    """
    batch, heads, chunk, head_dim = query.shape
    attributes: dict[str, Any] = {
        "layer": _layer_index(module),
        "scale": float(scaling),
        "window": window_of(module.config, sliding_window),
        "softcap": float(softcap or 0.0),
        "latent": 0,
    }
    out = onnx_ops.symbolic(
        f"{TRACE_DOMAIN}::{ATTENTION}",
        (query, key, value) if s_aux is None else (query, key, value, s_aux),
        attributes,
        dtype=query.dtype,
        shape=(batch, chunk, heads, head_dim),
        version=1,
    )
    return out, None


def _layer_index(module: nn.Module) -> int:
    index: Any = module.layer_idx
    assert isinstance(index, int)
    return index


# No mask function is registered under this name, so transformers builds no mask.
AttentionInterface.register(ATTENTION_IMPLEMENTATION, _attention_marker)


def _rms_norm(norm: RMSNorm, module: Any, hidden_states: Tensor) -> Tensor:
    states, weight = hidden_states, module.weight
    if norm.in_fp32:
        states, weight = states.float(), weight.float()
    if norm.weight_offset:
        weight = weight + norm.weight_offset
    normed = onnx_ops.symbolic(
        "::RMSNormalization",
        (states, weight),
        {"axis": -1, "epsilon": getattr(module, norm.epsilon), "stash_type": 1},
        dtype=states.dtype,
        shape=states.shape,
    )
    return normed.type_as(hidden_states) if norm.in_fp32 else normed


def _apply_rotary_pos_emb(
    query: Tensor,
    key: Tensor,
    cos: Tensor,
    sin: Tensor,
    unsqueeze_dim: int = 1,
    *,
    by_pair: bool = False,
) -> tuple[Tensor, Tensor]:
    # transformers mostly repeats the frequencies for both halves of a head; the operator takes one.
    width = 2 * cos.shape[-1] if by_pair else cos.shape[-1]
    cos, sin = cos[..., : width // 2], sin[..., : width // 2]
    partial = width if width < query.shape[-1] else 0  # 0: all of a head is rotated
    return (
        onnx_ops.rotary_embedding(query, cos, sin, rotary_embedding_dim=partial),
        onnx_ops.rotary_embedding(key, cos, sin, rotary_embedding_dim=partial),
    )


@contextmanager
def skeleton(
    config: PretrainedConfig, dtype: torch.dtype, change: Callable[[Any], None] | None = None
) -> Iterator[tuple[Any, FakeTensorMode]]:
    """Yield the model with markers and the mode of its inputs; restore transformers at the end.

    change: of transformers' model, before anything is marked.
    """
    config._attn_implementation = ATTENTION_IMPLEMENTATION
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake:
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=False)
        if change:
            change(model)
    model.eval()
    architecture = architecture_of(config)
    _compute_buffers(model, config, architecture.scaled_embedding)
    _mark_norms(model, architecture.norm)
    if architecture.latent:
        mark_latent_attention(model)
    if architecture.experts:
        mark_experts(model)
    _keep_in_fp32(model)
    modeling: Any = sys.modules[type(model).__module__]
    original = getattr(modeling, "apply_rotary_pos_emb", None)
    modeling.apply_rotary_pos_emb = functools.partial(
        _apply_rotary_pos_emb, by_pair=architecture.rope_by_pair
    )
    try:
        yield model, fake
    finally:
        modeling.apply_rotary_pos_emb = original


def _compute_buffers(model: Any, config: PretrainedConfig, scaled_embedding: bool) -> None:
    """Make computed buffers real tensors, so that they become constants of the graph."""
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    if scaled_embedding:
        embedding = model.model.embed_tokens
        embedding.embed_scale = torch.tensor(embedding.scalar_embed_scale)


def _keep_in_fp32(model: Any) -> None:
    """Give buffers fp32 that transformers reads so in every dtype, such as a router's bias."""
    for name, buffer in model.named_buffers():
        owner, _, attribute = name.rpartition(".")
        if attribute in (model._keep_in_fp32_modules_strict or ()):
            setattr(model.get_submodule(owner), attribute, buffer.float())


def _mark_norms(model: nn.Module, norm: RMSNorm) -> None:
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = functools.partial(_rms_norm, norm, module)
