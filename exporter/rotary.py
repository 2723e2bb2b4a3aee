"""Replaces a model's RoPE by ONNX's RotaryEmbedding, which no exporter emits by itself."""

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.onnx import ops as onnx_ops

from snapexport.exporter.architectures import Rope
from snapexport.exporter.latent_attention import cos_sin
from snapexport.exporter.probe.rope import APPLY, APPLY_COMPLEX, angles_of


def _rotated(form: Rope, states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
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
    return _rotated(form, query, cos, sin), _rotated(form, key, cos, sin)


def _of_one(form: Rope, states: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> Tensor:
    """Of queries or keys [B,H,C,D], or of [B,C,H,D] with unsqueeze_dim=2."""
    if unsqueeze_dim == 1:
        return _rotated(form, states, cos, sin)
    return _rotated(form, states.transpose(1, 2), cos, sin).transpose(1, 2)


def _of_complex(form: Rope, query: Tensor, key: Tensor, turns: Tensor) -> tuple[Tensor, Tensor]:
    """Of [B,C,H,D], by cosines and sines [2,B,C,D/2] in the place of complex numbers."""
    cos, sin = turns.unbind()
    turned = (_rotated(form, one.transpose(1, 2), cos, sin) for one in (query, key))
    query, key = (one.transpose(1, 2) for one in turned)
    return query, key


_FUNCTIONS: Mapping[str, tuple[str, Callable[..., Any]]] = {
    "both": (APPLY, _of_both),
    "one": (APPLY, _of_one),
    "complex": (APPLY_COMPLEX, _of_complex),
}


@contextmanager
def rope_marked(modeling: Any, inside: Any, form: Rope | None) -> Iterator[None]:
    """In this block a model's RoPE is the operator; without a form it stays as it is.

    inside: the decoder.
    """
    if form is None:
        yield
        return
    name, function = _FUNCTIONS[form.takes]
    original = getattr(modeling, name)
    setattr(modeling, name, functools.partial(function, form))
    if form.takes == "complex":
        rotary = inside.rotary_emb
        rotary.forward = lambda states, positions: torch.stack(cos_sin(rotary, states, positions))
    try:
        yield
    finally:
        setattr(modeling, name, original)
