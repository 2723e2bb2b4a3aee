"""Makes a decoder's transformers model without weights and with markers for attention.

All tensors are fake (shape and dtype, no memory). While the model is traced, attention becomes a
marker that `graphs/` replaces, and RoPE and RMSNorm become the standard ONNX operators, which no
exporter emits by itself. What a model's parts compute was seen before (`probe/`). Buffers that no
checkpoint holds, such as RoPE's frequencies or an embedding's factor, become constants of the
graph: the model's own `_init_weights` computes them, as after loading.
"""

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.onnx import ops as onnx_ops
from transformers import AttentionInterface

from snapexport.errors import UserError
from snapexport.exporter.model import Decoder, RMSNorm
from snapexport.exporter.model.markers import (
    is_latent,
    latent_marker,
    mark_experts,
    mark_latent_attention,
    mark_rope,
    scale_by_positions,
)
from snapexport.exporter.model.models import (
    bar_tokens,
    in_users_words,
    keep_layers,
    make_model,
    modeling_of,
    settle_ropes,
)
from snapexport.exporter.model.states import StateMarkers, states_replaced
from snapexport.graphs.markers import ATTENTION, TRACE_DOMAIN

ATTENTION_IMPLEMENTATION = "snapexport_marker"
_PLACE = "snapexport_place"
"""Attribute of an attention module: its layer's place and `Decoder.layers`' entry."""


def _attention_marker(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *_: Any,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **__: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers calls it: [B,H,C,D] and [B,Hkv,C,D] in, [B,C,H,D] out.

    Queries and keys arrive after RoPE; caches hold such keys. s_aux: the sink of each head, [H].
    """
    batch, heads, chunk, head_dim = query.shape
    place, layer = getattr(module, _PLACE)
    scale = float(head_dim**-0.5 if scaling is None else scaling)
    if is_latent(module):
        return latent_marker(module, query, key, value, place, scale), None
    attributes: dict[str, Any] = {
        "layer": place,
        "scale": scale,
        "window": layer.window,
        "softcap": float(softcap or 0.0),
        "latent": 0,
    }
    if layer.chunk:
        attributes["chunk"] = layer.chunk
    out = onnx_ops.symbolic(
        f"{TRACE_DOMAIN}::{ATTENTION}",
        (query, key, value) if s_aux is None else (query, key, value, s_aux),
        attributes,
        dtype=query.dtype,
        shape=(batch, chunk, heads, value.shape[-1]),
        version=1,
    )
    return out, None


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


@contextmanager
def skeleton(
    decoder: Decoder, dtype: torch.dtype, change: Callable[[Any], None] | None = None
) -> Iterator[tuple[Any, FakeTensorMode]]:
    """Yield the model with markers and the mode of its inputs; restore transformers at the end.

    change: of transformers' model, before anything is marked.
    """
    fake, config = FakeTensorMode(allow_non_fake_inputs=True), decoder.config
    names = decoder.names
    with torch.device("meta"), in_users_words(), _attending_by_markers(config):
        model = make_model(config, decoder.whole, dtype=dtype)
    keep_layers(model, names.decoder, names.layers, decoder.depth)
    with fake:
        _make_fake(model)
        if change:
            change(model)
    model.eval()
    inside = model.get_submodule(names.decoder)
    compute_buffers(model)
    bar_tokens(model, decoder)
    _mark_places(model, decoder)
    _mark_norms(model, decoder)
    if decoder.latent:
        mark_latent_attention(model)
    if decoder.expert_form:
        mark_experts(model, decoder.expert_form)
    _keep_in_fp32(model)
    scale_by_positions(inside)
    modeling = modeling_of(model, names.decoder)
    states = states_replaced(modeling, StateMarkers.of(model.get_submodule(names.layers)))
    with mark_rope(modeling, inside, decoder), states:
        yield model, fake


@contextmanager
def _attending_by_markers(config: Any) -> Iterator[None]:
    usual = config._attn_implementation
    config._attn_implementation = ATTENTION_IMPLEMENTATION
    try:
        yield
    finally:
        config._attn_implementation = usual


def _make_fake(model: nn.Module) -> None:
    """Give a model on the meta device tensors that an export takes for real ones."""
    made: dict[Tensor, nn.Parameter] = {}  # tied weights stay one
    for module in model.modules():
        for name, weight in module._parameters.items():
            if weight is not None:
                if weight not in made:
                    empty = torch.empty(weight.shape, dtype=weight.dtype)
                    made[weight] = nn.Parameter(empty, weight.requires_grad)
                module._parameters[name] = made[weight]
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype)


def _mark_places(model: Any, decoder: Decoder) -> None:
    """Attention modules learn which layer is theirs, and what it was seen to attend to."""
    listed = model.get_submodule(decoder.names.layers).named_children()
    for (place, module), layer in zip(listed, decoder.layers, strict=True):
        for part in module.modules():
            if hasattr(part, "layer_idx"):
                setattr(part, _PLACE, (int(place), layer))


def _mark_norms(model: nn.Module, decoder: Decoder) -> None:
    for module in model.modules():
        norm = decoder.norms.get(type(module).__name__)
        if norm and getattr(module, "weight", None) is not None:
            module.forward = functools.partial(_rms_norm, norm, module)


def _keep_in_fp32(model: Any) -> None:
    """Give buffers fp32 that transformers reads so in every dtype, such as a router's bias."""
    for name, buffer in model.named_buffers():
        owner, _, attribute = name.rpartition(".")
        if attribute in (model._keep_in_fp32_modules_strict or ()):
            setattr(model.get_submodule(owner), attribute, buffer.float())


_UNSET = -12345
"""The value of integers until they are computed."""


def compute_buffers(model: Any) -> None:
    """Give a fake model real buffers where a checkpoint holds none. Raises UserError."""
    for path, module in list(model.named_modules()):
        own = [name for name in module._non_persistent_buffers_set if _is_buffer(module, name)]
        if not own:
            continue
        for name in own:
            module._buffers[name] = _unset(module._buffers[name])
        for owner in _around(path):
            with torch.no_grad():
                _nearest_model(model, owner)._init_weights(model.get_submodule(owner))
            if not any(_is_unset(module._buffers[name]) for name in own):
                break
        for name in own:
            if _is_unset(module._buffers[name]):
                module._buffers[name] = _of_constructor(model, module, path, name)
    settle_ropes(model)


def _around(path: str) -> Iterator[str]:
    """The module itself and those around it, any of which may initialize it, from inside."""
    while path:
        yield path
        path = path.rpartition(".")[0]


def _nearest_model(model: Any, path: str) -> Any:
    """The innermost of transformers' models that a module is in, which initializes it."""
    found = model
    for end in [place for place, letter in enumerate(path) if letter == "."] + [len(path)]:
        inner = model.get_submodule(path[:end])
        found = inner if hasattr(inner, "_init_weights") else found
    return found


def _is_buffer(module: nn.Module, name: str) -> bool:
    return module._buffers.get(name) is not None


def _unset(buffer: Tensor) -> Tensor:
    value = math.nan if buffer.dtype.is_floating_point else _UNSET
    value = False if buffer.dtype == torch.bool else value
    return torch.full(tuple(buffer.shape), value, dtype=buffer.dtype)


def _is_unset(buffer: Tensor) -> bool:
    if buffer.dtype.is_floating_point:
        return bool(buffer.isnan().any())
    return buffer.dtype == torch.bool or bool((buffer == _UNSET).any())


def _of_constructor(model: Any, module: Any, path: str, name: str) -> Tensor:
    """The buffer of a further module of the class."""
    config = getattr(module, "config", None) or model.config
    for given in ((config,), (config, getattr(module, "layer_idx", 0)), ()):
        try:
            buffer = type(module)(*given)._buffers[name]
        except Exception:  # of other arguments
            continue
        if isinstance(buffer, Tensor):
            return buffer
    raise UserError(
        f"the model computes {path}.{name} in a way of its own", "this model cannot be built"
    )
