"""Confirms how a model's `apply_rotary_pos_emb` rotates, by its numbers.

Some twenty different functions of transformers have this name: channels are paired by halves or
by neighbours, frequencies are repeated in one of three ways, and parts of a head may be left out.
"""

import inspect
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from snapexport.errors import UserError
from snapexport.exporter.architectures.decoder import Frequencies, Layer, Rope

APPLY, APPLY_COMPLEX = "apply_rotary_pos_emb", "apply_rotary_emb"
APPLY_INTERLEAVED = "apply_rotary_pos_emb_interleave"
_TOKENS, _FIRST = 7, 3
_ABSOLUTE = 1e-5


@torch.no_grad()
def rope_of(modeling: ModuleType, decoder: Any, layer: Layer, name: str = APPLY) -> Rope | None:
    """The form of a decoder's RoPE; None: not confirmed, so traced as it is.

    name: of the function; APPLY stands for APPLY_COMPLEX too.
    """
    module, apply = getattr(decoder, "rotary_emb", None), getattr(modeling, name, None)
    if module is None or (apply is None and name != APPLY):
        return None
    if apply is None:
        apply = getattr(modeling, APPLY_COMPLEX, None)
        return _complex_form(apply, module, decoder.config, layer)
    taken = list(inspect.signature(apply).parameters)
    alone = taken[1:3] == ["cos", "sin"]
    if not alone and taken[:4] != ["q", "k", "cos", "sin"]:
        return None
    try:
        cos, sin = _angles(module, decoder.config)
    except Exception:  # it takes other arguments
        return None
    # A model may hand over whole heads, or the part of each that is rotated.
    for width in dict.fromkeys((layer.key_dim, cos.shape[-1])):
        if form := _form(apply, alone, cos, sin, _states(layer, width)):
            return form
    return None


def _states(layer: Layer, width: int) -> tuple[Tensor, Tensor]:
    """Queries and keys [1,H,C,D]."""
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(1, layer.heads, _TOKENS, width, generator=generator)
    return query, torch.randn(1, layer.kv_heads, _TOKENS, width, generator=generator)


def _form(
    apply: Any, alone: bool, cos: Tensor, sin: Tensor, states: tuple[Tensor, Tensor]
) -> Rope | None:
    """The form whose numbers are the function's."""
    query, key = states
    try:
        if alone:
            expected = apply(query, cos, sin), apply(key, cos, sin)
        else:
            expected = apply(query, key, cos, sin)
    except Exception:  # it takes other tensors: traced as it is
        return None
    for form, channels in _forms(cos, query.shape[-1], alone):
        found = [rotated(form, one, cos, sin, channels) for one in states]
        pairs = list(zip(found, expected, strict=True))
        if apply.__name__ == APPLY_INTERLEAVED:  # it orders channels anew, of both alike
            pairs = [(_scores(*found), _scores(*expected))]
        if all(_is_close(*pair) for pair in pairs):
            return form
    return None


def _scores(query: Tensor, key: Tensor) -> Tensor:
    return query @ key[:, :1].mT


def _complex_form(apply: Any, module: Any, config: Any, layer: Layer) -> Rope | None:
    """The form of a function of queries, keys and complex numbers [B,C,D/2]."""
    form = Rope("pairs", interleaved=True, takes="complex")
    for one in (form, replace(form, takes="complex by head")):
        try:
            turns = _angles(module, config)
            states = _states(layer, 2 * turns.shape[-1])
            expected = apply(*(as_taken(one, part) for part in states), turns)
            cos, sin = cos_sin(type(module)(config), *_inputs())
            turned = [rotated(one, part, cos, sin, part.shape[-1]) for part in states]
            if all(map(_is_close, (as_taken(one, part) for part in turned), expected)):
                return one
        except Exception:  # it takes other tensors
            continue
    return None


def as_taken(form: Rope, states: Tensor) -> Tensor:
    """States [B,H,C,D] as a function of complex numbers takes them, or back."""
    return states.transpose(1, 2) if form.takes == "complex" else states


def cos_sin(rotary: Any, states: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines [B,C,d/2] of a RoPE over d numbers."""
    angles = position_ids[..., None].float() * rotary.inv_freq.float()
    turned = (angles.cos(), angles.sin())
    cos, sin = ((table * rotary.attention_scaling).to(states.dtype) for table in turned)
    return cos, sin


def require_said_ropes(config: Any, decoder: Any) -> None:
    """Raise UserError for a RoPE for each type of layer in a model that has only one."""
    ropes = (getattr(config, "rope_parameters", None) or {}).values()
    module = getattr(decoder, "rotary_emb", None)
    if module is None or not any(isinstance(rope, dict) for rope in ropes):
        return
    if "layer_type" not in inspect.signature(type(module).forward).parameters:
        raise UserError(
            "config.json gives a RoPE for each type of layer; a model_type "
            f"'{config.model_type}' has only one",
            "correct rope_parameters in config.json",
        )


def _angles(module: Any, config: Any) -> Any:
    """Of a few positions, by the model's own module."""
    by_type = "layer_type" in inspect.signature(type(module).forward).parameters
    named = {"layer_type": config.layer_types[0]} if by_type else {}
    return type(module)(config)(*_inputs(), **named)


def _inputs() -> tuple[Tensor, Tensor]:
    """States, of which only the dtype counts, and positions."""
    return torch.zeros(1), torch.arange(_FIRST, _FIRST + _TOKENS)[None]


def _forms(cos: Tensor, width: int, alone: bool) -> Iterator[tuple[Rope, int]]:
    """Every form, and how many channels of a head it rotates."""
    listed = cos.shape[-1]
    turned: dict[Frequencies, int] = {"halves": listed, "steps": listed, "pairs": 2 * listed}
    for frequencies, channels in turned.items():
        for interleaved in (False, True):
            if channels <= width:
                yield Rope(frequencies, interleaved, "one" if alone else "both"), channels


def angles_of(form: Rope, table: Tensor) -> Tensor:
    """A table of cosines or sines [B,C,n] with one number for each pair."""
    if form.frequencies == "halves":
        return table[..., : table.shape[-1] // 2]
    return table[..., ::2] if form.frequencies == "steps" else table


def rotated(form: Rope, states: Tensor, cos: Tensor, sin: Tensor, channels: int) -> Tensor:
    """As ONNX's RotaryEmbedding calculates."""
    cos, sin = (angles_of(form, table)[:, None] for table in (cos, sin))
    turned, rest = states[..., :channels], states[..., channels:]
    if form.interleaved:
        first, second = turned[..., 0::2], turned[..., 1::2]
    else:
        first, second = turned.chunk(2, dim=-1)
    pair = first * cos - second * sin, first * sin + second * cos
    joined = torch.stack(pair, -1).flatten(-2) if form.interleaved else torch.cat(pair, -1)
    return torch.cat((joined, rest), -1)


def _is_close(found: Tensor, expected: Tensor) -> bool:
    return found.shape == expected.shape and float((found - expected).abs().max()) < _ABSOLUTE
