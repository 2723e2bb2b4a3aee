"""Finds the recurrent states of a model's layers, and confirms by numbers what its functions do."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from snapexport.contract.model_facts import StateSizes
from snapexport.errors import UserError
from snapexport.exporter.model.states import CONVOLUTION, FUNCTIONS, Plain, Recurrence

_TOKENS, _CHANNELS, _HEADS, _GROUPS, _KEY, _VALUE = 37, 12, 4, 2, 8, 6
_CLOSE = 1e-3


class Recording:
    """A `Mixing` on the meta device, which notes the states of each layer.

    place: of the layer that runs.
    """

    def __init__(self, place: Callable[[], int]) -> None:
        self._place, self.sizes = place, dict[int, StateSizes]()

    def convolve(self, states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        self._note(conv=(weight.shape[0], weight.shape[-1] - 1))
        return torch.empty_like(states)

    def recur(self, one: Recurrence) -> Tensor:
        self._note(matrix=(one.value.shape[2], one.key.shape[3], one.value.shape[3]))
        return torch.empty_like(one.value)

    def _note(self, **found: tuple[int, ...]) -> None:
        place = self._place()
        noted = self.sizes.get(place, StateSizes())
        if any(getattr(noted, kind) for kind in found):
            raise UserError(
                f"layer {place} has more than one recurrent state of a kind",
                "only layers with one convolution and one matrix state can be built",
            )
        self.sizes[place] = noted.model_copy(update=found)


def require_stated(modeling: Any) -> None:
    """Raise UserError for a function of the table that calculates something else here."""
    generator = torch.Generator().manual_seed(0)
    for name, stated in FUNCTIONS.items():
        function = getattr(modeling, name, None)
        if function is None:
            continue
        given = _ARGUMENTS[name](generator)
        with torch.device("cpu"), torch.no_grad():
            own, ours = function(**given), stated(Plain(), modeling, **given)
        if not _is_close(own, ours):
            raise UserError(
                f"{name} of {modeling.__name__.rpartition('.')[2]} calculates another recurrence "
                "than the graphs have",
                "only the convolutions and recurrences that models share can be built",
            )


def _is_close(own: Any, ours: Any) -> bool:
    own, ours = (one[0] if isinstance(one, tuple) else one for one in (own, ours))
    return own.shape == ours.shape and bool((own - ours).abs().max() <= _CLOSE * own.abs().max())


def _random(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator)


def _of_convolution(generator: torch.Generator) -> dict[str, Any]:
    return {
        "hidden_states": _random(generator, 2, _CHANNELS, _TOKENS),
        "weight": _random(generator, _CHANNELS, 4),
        "bias": _random(generator, _CHANNELS),
        "activation": "silu",
    }


def _of_delta_rule(generator: torch.Generator, *channels: int) -> dict[str, Any]:
    heads = (2, _TOKENS, _HEADS)
    return {
        "query": _random(generator, *heads, _KEY),
        "key": _random(generator, *heads, _KEY),
        "value": _random(generator, *heads, _VALUE),
        "g": -_random(generator, *heads, *channels).abs(),
        "beta": _random(generator, *heads).sigmoid(),
        "chunk_size": 16,
        "use_qk_l2norm_in_kernel": True,
    }


def _of_mamba2(generator: torch.Generator) -> dict[str, Any]:
    groups = (2, _TOKENS, _GROUPS, _KEY)
    return {
        "hidden_states": _random(generator, 2, _TOKENS, _HEADS, _VALUE),
        "dt": _random(generator, 2, _TOKENS, _HEADS),
        "A": -_random(generator, _HEADS).exp(),
        "B": _random(generator, *groups),
        "C": _random(generator, *groups),
        "chunk_size": 16,
        "D": _random(generator, _HEADS),
        "dt_bias": _random(generator, _HEADS),
        "dt_softplus": True,
        "dt_limit": (0.1, 2.0),
    }


_ARGUMENTS: Mapping[str, Callable[[torch.Generator], dict[str, Any]]] = {
    CONVOLUTION: _of_convolution,
    "torch_chunk_gated_delta_rule": _of_delta_rule,
    "chunk_kimi_delta_attention": lambda generator: _of_delta_rule(generator, _KEY),
    "mamba2_chunk_scan": _of_mamba2,
}
