"""Finds whether rounding could change the experts that a model's routers choose."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

NOISE = 3e-5
"""Several times the effect of fp32 rounding on hidden states, relative to them."""
DRAWS = 4


class Routing:
    """clear: whether noise of that size changed no choice so far."""

    def __init__(self) -> None:
        self.clear = True
        self._generator = torch.Generator().manual_seed(0)
        self._asks = False

    def hook(self, router: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        """Ask the router again, for noisy hidden states."""
        if self._asks or not self.clear:
            return
        self._asks = True
        (states, *rest), chosen = inputs, _chosen(output)
        for _ in range(DRAWS):
            noise = torch.randn(states.shape, generator=self._generator)
            others = _chosen(router(states * (1 + NOISE * noise), *rest))
            self.clear &= bool(torch.equal(others, chosen))
        self._asks = False


def _chosen(output: tuple[Tensor, ...]) -> Tensor:
    """The experts among what a router returns, in ascending order, or whether each is chosen."""
    for found in output:
        if not found.dtype.is_floating_point:
            return found.sort(-1).values
    return output[0] > 0  # Llama 4: scores, of which the others' are 0


@contextmanager
def watched(model: Any) -> Iterator[Routing]:
    """Watch the routers of a model in this block."""
    routing = Routing()
    routers = [m for m in model.modules() if type(m).__name__.lower().endswith("router")]
    handles = [router.register_forward_hook(routing.hook) for router in routers]
    try:
        yield routing
    finally:
        for handle in handles:
            handle.remove()
