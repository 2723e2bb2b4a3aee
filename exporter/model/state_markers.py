"""Markers of recurrent states in a trace, in the places of what mixes positions."""

from typing import Any

from torch import Tensor
from torch.onnx import ops as onnx_ops

from snapexport.exporter.model.states import Recurrence
from snapexport.graphs.markers import CAUSAL_CONV, LINEAR_ATTENTION, TRACE_DOMAIN


class StateMarkers:
    """A `Mixing` of markers. place: of the layer that runs, which each marker holds."""

    def __init__(self) -> None:
        self.place = -1

    @classmethod
    def of(cls, layers: Any) -> "StateMarkers":
        """Of a list of layers, whose forwards say their place from now on."""
        markers = cls()
        for name, layer in layers.named_children():
            layer.register_forward_pre_hook(markers._entering(int(name)))
        return markers

    def _entering(self, place: int) -> Any:
        def enter(*_: Any) -> None:
            self.place = place

        return enter

    def convolve(self, states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        inputs = (states, weight) if bias is None else (states, weight, bias)
        return self._marked(CAUSAL_CONV, inputs, states)

    def recur(self, one: Recurrence) -> Tensor:
        gates = (one.decay,) if one.beta is None else (one.decay, one.beta)
        inputs = (one.query, one.key, one.value, *gates)
        return self._marked(LINEAR_ATTENTION, inputs, one.value, scale=one.scale)

    def _marked(self, op: str, inputs: tuple[Tensor, ...], like: Tensor, **more: float) -> Tensor:
        return onnx_ops.symbolic(
            f"{TRACE_DOMAIN}::{op}",
            inputs,
            {"layer": self.place, **more},
            dtype=like.dtype,
            shape=like.shape,
            version=1,
        )
