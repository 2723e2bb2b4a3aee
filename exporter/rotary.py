"""Replaces a model's RoPE by ONNX's RotaryEmbedding, which no exporter emits by itself."""

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.onnx import ops as onnx_ops

from snapexport.exporter.architectures import Decoder, Rope
from snapexport.exporter.probe.rope import (
    APPLY,
    APPLY_COMPLEX,
    APPLY_INTERLEAVED,
    angles_of,
    as_taken,
    cos_sin,
)


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
    """By cosines and sines [2,B,C,D/2] in the place of complex numbers."""
    cos, sin = turns.unbind()
    turned = (_rotated(form, as_taken(form, one), cos, sin) for one in (query, key))
    query, key = (as_taken(form, one) for one in turned)
    return query, key


_FUNCTIONS: Mapping[str, tuple[str, Callable[..., Any]]] = {
    "both": (APPLY, _of_both),
    "one": (APPLY, _of_one),
    "complex": (APPLY_COMPLEX, _of_complex),
    "complex by head": (APPLY_COMPLEX, _of_complex),
}


@contextmanager
def rope_marked(modeling: Any, inside: Any, decoder: Decoder) -> Iterator[None]:
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
    if APPLY_COMPLEX in marked:
        rotary = inside.rotary_emb
        rotary.forward = lambda states, positions: torch.stack(cos_sin(rotary, states, positions))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(modeling, name, original)
