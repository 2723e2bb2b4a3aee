"""Finds the tokens for which rounding could change the experts that a model's routers choose.

Such a token has two experts of nearly equal scores, of which either is right. Noise tells: a second
forward begins with slightly other embeddings.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

_NOISE = 3e-5
"""Several times the effect of fp32 rounding on hidden states, relative to them."""


@dataclass
class Choices:
    """The experts of each token [T,k], ascending, by each call of a module of experts."""

    chosen: list[Tensor] = field(default_factory=list)

    def note(self, _: Any, given: tuple[Any, ...]) -> None:
        """A hook of a module of experts: hidden states, the experts of each token, weights."""
        if len(given) > 1 and isinstance(given[1], Tensor):
            self.chosen.append(given[1].sort(-1).values)

    def first_other(self, other: "Choices") -> int | None:
        """The first token whose choices differ."""
        unlike = [
            int(row)
            for one, two in zip(self.chosen, other.chosen, strict=True)
            for row in (one != two).any(-1).nonzero()[:1, 0]
        ]
        return min(unlike, default=None)


@contextmanager
def choices_of(model: Any, *, seed: int | None = None) -> Iterator[Choices]:
    """Note what the routers of a model choose in this block. seed: of the noise; None: none."""
    choices = Choices()
    experts = [one for one in model.modules() if type(one).__name__.endswith("Experts")]
    handles = [one.register_forward_pre_hook(choices.note) for one in experts]
    if seed is not None:
        handles.append(model.get_input_embeddings().register_forward_hook(_noisy(seed)))
    try:
        yield choices
    finally:
        for handle in handles:
            handle.remove()


def _noisy(seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed)

    def hook(_: Any, __: Any, embedded: Tensor) -> Tensor:
        return embedded * (1 + _NOISE * torch.randn(embedded.shape, generator=generator))

    return hook
