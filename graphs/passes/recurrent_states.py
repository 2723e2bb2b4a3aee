"""Gives a graph its recurrent states: as inputs and outputs, or from nothing in a single shot."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from snapexport.contract import names
from snapexport.graphs.markers import CACHE_DOMAIN, CAUSAL_CONV, LINEAR_ATTENTION, TRACE_DOMAIN
from snapexport.graphs.passes.base import (
    computed_range,
    cut,
    fresh,
    graph_input,
    int64s,
    markers,
    node,
)
from snapexport.graphs.passes.causal_conv import causal_conv


@dataclass(frozen=True)
class RecurrentStates:
    """States [B,...] of each layer that has some, which a step's tokens change.

    valid: the input that says how many tokens of a row are real, int64 [1]; "": all. The others
    leave the states alone. begins: rows begin with states of zeros, and no input holds them.
    """

    valid: str = ""
    begins: bool = False

    def apply(self, graph: gs.Graph) -> None:
        valid = graph_input(graph, self.valid) if self.valid else None
        for layer, marker in markers(graph, TRACE_DOMAIN, CAUSAL_CONV):
            self._convolve(graph, layer, marker, valid)
        for layer, marker in markers(graph, TRACE_DOMAIN, LINEAR_ATTENTION):
            self._recur(graph, layer, marker, valid)

    def _convolve(
        self, graph: gs.Graph, layer: int, marker: gs.Node, valid: gs.Tensor | None
    ) -> None:
        (states, weight, *bias), (out,) = cut(graph, marker)
        shape = (*states.shape[:2], weight.shape[-1] - 1)
        past, present = self._state(graph, names.past_conv(layer), states.dtype, shape)
        given = bias[0] if bias else None
        mixed = causal_conv(graph, states, weight, given, past, valid, present)
        node(graph, "Identity", [mixed], [out])

    def _recur(self, graph: gs.Graph, layer: int, marker: gs.Node, valid: gs.Tensor | None) -> None:
        scale = marker.attrs["scale"]
        (query, key, value, *gates), outputs = cut(graph, marker)
        batch, tokens, heads, width = value.shape
        if valid is not None:
            real = _real(graph, tokens, valid)
            key, *gates = (_zero_unless(graph, real, one) for one in (key, *gates))
        if len(gates) == 1:  # without beta
            gates.append(gs.Variable.empty())
        shape = (batch, heads, key.shape[-1], width)
        past, present = self._state(graph, names.past_matrix(layer), np.float32, shape)
        node(
            graph,
            LINEAR_ATTENTION,
            [query, key, value, *gates, past],
            [*outputs, present],
            domain=CACHE_DOMAIN,
            layer=layer,
            scale=scale,
        )

    def _state(
        self, graph: gs.Graph, name: str, dtype: Any, shape: tuple[int, ...]
    ) -> tuple[gs.Variable, gs.Variable]:
        """A state before and after the step."""
        present = gs.Variable(names.present_of(name), dtype, shape)
        graph.outputs.append(present)
        if not self.begins:
            graph.inputs.append(gs.Variable(name, dtype, shape))
            return graph.inputs[-1], present
        zeros = gs.Variable(fresh(graph, "zeros"), dtype, shape)
        zero = gs.Constant(fresh(graph, "zero"), np.zeros(1, dtype))
        node(graph, "Expand", [zero, int64s(graph, *shape)], [zeros])
        return zeros, present


def _real(graph: gs.Graph, tokens: int, valid: gs.Tensor) -> gs.Tensor:
    """Bool [C,1], whether a token is real."""
    (real,) = node(graph, "Less", [computed_range(graph, 0, tokens), valid])
    return node(graph, "Unsqueeze", [real, int64s(graph, 1)])[0]


def _zero_unless(graph: gs.Graph, real: gs.Tensor, states: gs.Tensor) -> gs.Variable:
    """States [B,C,H] or [B,C,H,D], zero where a token isn't real."""
    mask = real
    if len(states.shape) == 4:
        (mask,) = node(graph, "Unsqueeze", [real, int64s(graph, 2)])
    zero = gs.Constant(fresh(graph, "zero"), np.zeros((), np.float32))
    kept = gs.Variable(fresh(graph, "real"), states.dtype, states.shape)
    return node(graph, "Where", [mask, states, zero], [kept])[0]
