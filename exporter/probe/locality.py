"""Confirms that a decoder mixes positions by attention alone, on a small model of random numbers.

Attention becomes a function of the row's own query, key and value. Then tokens can come in any
order, each with its position: what the model makes of them must come in the same order, and
positions that it counts itself must be the same. A convolution or a recurrent state shows, whatever
it is called.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface

from snapexport.errors import UserError
from snapexport.exporter.miniature import miniature
from snapexport.exporter.models import hidden_states_of, modeling_of
from snapexport.exporter.probe.attention import MANY, masks_replaced
from snapexport.exporter.states import OwnRow, states_replaced
from snapexport.exporter.temperature import scale_by_positions

_IMPLEMENTATION = "snapexport_probe_rows"
_RELATIVE = 1e-3
_MOST = 1 << 27
"""Numbers in a small model. More are of parts whose sizes aren't known, such as a vision tower."""


def _own_row(
    _: Any, query: Tensor, key: Tensor, value: Tensor, *__: Any, **___: Any
) -> tuple[Tensor, None]:
    groups = query.shape[1] // key.shape[1]
    keys, values = (states.repeat_interleave(groups, 1) for states in (key, value))
    scores = (query * keys).sum(-1, keepdim=True) * query.shape[-1] ** -0.5
    return (scores.tanh() * values).transpose(1, 2), None


AttentionInterface.register(_IMPLEMENTATION, _own_row)


def require_local(inside: Any, layers: str) -> None:
    """Raise UserError for a decoder that mixes positions outside of attention.

    inside: the decoder, on any device. layers: the path of its layers in it.
    """
    runs = states_of(inside, layers)
    if runs is None:
        return
    in_order, mixed, counted = runs
    for place, (one, other) in enumerate(zip(in_order, mixed, strict=True)):
        if not _is_close(one, other):
            where = f"layer {place - 1} mixes" if place else "the decoder mixes"
            raise UserError(
                f"{where} positions outside of attention, or makes positions of its own",
                "only decoders whose layers hold keys and values alone can be built",
            )
    if not all(map(_is_close, in_order, counted)):
        raise UserError(
            "the decoder counts positions in a way of its own",
            "only decoders whose first token has position 0 can be built",
        )


def states_of(inside: Any, layers: str) -> list[list[Tensor]] | None:
    """What enters the first layer, and what leaves each: of tokens in order, out of it, and without
    positions. All are sorted by positions. None: no small model can be made, as the sizes of this
    one don't fit together; it was recorded all the same.
    """
    try:
        small = _small(inside)
        return small and _states(small, layers)
    except Exception:
        return None


@torch.no_grad()
def _small(inside: Any) -> Any:
    """A small decoder of the class, on the CPU, of random weights; None if it isn't small."""
    config = miniature(inside.config)
    config._attn_implementation = _IMPLEMENTATION
    with torch.device("meta"):
        if sum(weight.numel() for weight in type(inside)(config).parameters()) > _MOST:
            return None
    with torch.device("cpu"):
        small = type(inside)(config).eval()
    generator = torch.Generator().manual_seed(0)
    for weight in small.parameters():
        noise = torch.randn(weight.shape, generator=generator)
        if weight.ndim > 1:
            weight.copy_(noise / weight.shape[-1] ** 0.5)
        else:
            weight.add_(0.3 * noise)
    return small


@torch.no_grad()
def _states(small: Any, layers: str) -> list[list[Tensor]]:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(small.config.vocab_size, (1, MANY), generator=generator)
    mixed = torch.randperm(MANY, generator=generator)
    seen: list[Tensor] = []
    listed = small.get_submodule(layers)
    listed[0].register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    for layer in listed:
        layer.register_forward_hook(lambda *call: seen.append(_first(call[2])))

    def run(order: Tensor, positions: Tensor | None) -> list[Tensor]:
        seen.clear()
        modeling = modeling_of(small, "")
        with masks_replaced(modeling, lambda *_: None), states_replaced(modeling, OwnRow()):
            hidden_states_of(small, tokens[:, order], positions)
        return [states[..., order.argsort(), :] for states in seen]

    ascending = torch.arange(MANY)
    # The first run of a process is not kept: in one of six, PyTorch 2.13 calculates it less exactly
    # on two threads (by 5e-4 in the first layer), and the others alike to the last bit.
    run(ascending, None)
    counted = run(ascending, None)
    scale_by_positions(small)
    return [run(ascending, ascending[None]), run(mixed, mixed[None]), counted]


def _first(output: Any) -> Tensor:
    states: Tensor = output[0] if isinstance(output, tuple) else output
    return states


def _is_close(one: Tensor, other: Tensor) -> bool:
    return bool((one - other).abs().max() <= _RELATIVE * one.abs().max())
