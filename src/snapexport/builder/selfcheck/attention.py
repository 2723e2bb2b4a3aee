"""Watches transformers' eager attention: remembers queries and keys, and may hide keys.

The arithmetic stays transformers' own: its function is called, with a mask that hides more.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

_EAGER = "eager_attention_forward"

Visible = Callable[[int], Tensor]
"""The keys that a layer's last query sees, by the layer's place: bool [KV heads or 1, keys]."""


@dataclass(frozen=True)
class Attended:
    """One call of attention. query [H,T,D] and key [Hkv,T,D]: after RoPE."""

    query: Tensor
    key: Tensor
    scaling: float
    softcap: float


@dataclass
class Watch:
    """What the layers of a forward pass attended, in order."""

    visible: Visible | None = None
    attended: list[Attended] = field(default_factory=list)

    def call(
        self,
        eager: Callable[..., Any],
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        *rest: Any,
        **named: Any,
    ) -> Any:
        """transformers' function, and a note of what it got."""
        place = len(self.attended)
        scaling = named.get("scaling", rest[0] if rest else None)
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        softcap = float(named.get("softcap") or 0.0)
        self.attended.append(Attended(query[0], key[0], float(scale), softcap))
        if self.visible is not None:
            assert attention_mask is not None
            attention_mask = _hiding(attention_mask, self.visible(place), query.shape[1])
        return eager(module, query, key, value, attention_mask, *rest, **named)


def _hiding(mask: Tensor, visible: Tensor, heads: int) -> Tensor:
    """A mask [1,H,T,N] whose last row shows the visible keys alone."""
    rows = mask.expand(-1, heads, -1, -1).clone()
    of_heads = visible.repeat_interleave(heads // len(visible), dim=0)
    rows[0, :, -1] = torch.where(of_heads, 0.0, torch.finfo(mask.dtype).min)
    return rows


@contextmanager
def watching(model: Any, visible: Visible | None = None) -> Iterator[Watch]:
    """Watch the attention of a model in this block."""
    watch = Watch(visible)
    modules = {sys.modules[type(module).__module__] for module in model.modules()}
    usual = {one: getattr(one, _EAGER) for one in modules if hasattr(one, _EAGER)}

    def watched(eager: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given, **named: watch.call(eager, *given, **named)

    for one, eager in usual.items():
        setattr(one, _EAGER, watched(eager))
    try:
        yield watch
    finally:
        for one, eager in usual.items():
            setattr(one, _EAGER, eager)
