"""Keys and values in 8 bits, with scales of each request, KV head and channel.

The scales stay out of attention, which takes whole numbers as they are: scores are
(query * key_scale) . key, and a sum of values weighted alike is scaled afterwards. Compression
makes them of the prompt, and decode passes them through.
"""

import numpy as np
import onnx_graphsurgeon as gs

from snapexport.contract import names
from snapexport.graphs.passes.base import call, fresh, graph_input, int64s, node
from snapexport.graphs.passes.storage.base import Prompt, States, as_present

_ROTATED, _UNROTATED = 2, 1
"""Int8Scale's parts."""


class Int8:
    """Whole numbers from -127 to 127."""

    def held(self, graph: gs.Graph, layer: int, states: States) -> States:
        key_scale = _passed_through(graph, names.past_key_scale(layer), states.key)
        value_scale = _passed_through(graph, names.past_value_scale(layer), states.value)
        query = gs.Variable(fresh(graph, "scaled"), states.query.dtype, states.query.shape)
        _scaled(graph, states.query, key_scale, query)
        return States(
            query, _rows(graph, states.key, key_scale), _rows(graph, states.value, value_scale)
        )

    def attended(self, graph: gs.Graph, layer: int, states: States, out: gs.Tensor) -> gs.Tensor:
        unscaled = gs.Variable(fresh(graph, "unscaled"))
        value_scale = graph_input(graph, names.past_value_scale(layer))
        batch, heads, rows, _ = states.query.shape
        assert rows == 1, "[B,H,1,D] and [B,1,H,D] are the same numbers"
        out.shape = (batch, rows, heads, states.value.shape[3])
        _scaled(graph, unscaled, value_scale, out)
        return unscaled

    def compressed(
        self, graph: gs.Graph, layer: int, prompt: Prompt, kept: list[gs.Variable]
    ) -> list[gs.Variable]:
        key, value = kept
        key_scale = _scale(graph, names.present_key_scale(layer), prompt, prompt.key, _ROTATED)
        value_scale = _scale(
            graph, names.present_value_scale(layer), prompt, prompt.value, _UNROTATED
        )
        held = [_rows(graph, key, key_scale), _rows(graph, value, value_scale)]
        return [*as_present(layer, held), key_scale, value_scale]


def _passed_through(graph: gs.Graph, past: str, states: gs.Tensor) -> gs.Variable:
    """A layer's scales as an input, [B,Hkv,1,D], and the output that has to share its buffer."""
    batch, kv_heads, _, head_dim = states.shape
    shape = (batch, kv_heads, 1, head_dim)
    scale = gs.Variable(past, np.float32, shape)
    present = gs.Variable(names.present_of(past), np.float32, shape)
    graph.inputs.append(scale)
    graph.outputs.append(present)
    node(graph, "Identity", [scale], [present])
    return scale


def _scale(
    graph: gs.Graph, name: str, prompt: Prompt, states: gs.Tensor, parts: int
) -> gs.Variable:
    """The scales of a prompt's keys, or of its values."""
    batch, kv_heads, _, head_dim = states.shape
    scale = gs.Variable(name, np.float32, (batch, kv_heads, 1, head_dim))
    call(graph, "Int8Scale", [states, prompt.length], [scale], parts=[parts])
    return scale


def _rows(graph: gs.Graph, states: gs.Tensor, scale: gs.Tensor) -> gs.Variable:
    """[B,Hkv,C,D] in whole numbers."""
    rows = gs.Variable(fresh(graph, "rows"), np.int8, states.shape)
    call(graph, "Int8Rows", [states, scale], [rows])
    return rows


def _scaled(graph: gs.Graph, heads: gs.Tensor, scale: gs.Tensor, out: gs.Tensor) -> None:
    """Each query head's D numbers times its KV head's scales; one row of all the heads."""
    batch, kv_heads, _, head_dim = scale.shape
    grouped = node(graph, "Reshape", [heads, int64s(graph, batch, kv_heads, -1, head_dim)])
    scaled = node(graph, "Mul", [*grouped, scale])
    node(graph, "Reshape", [*scaled, int64s(graph, *out.shape)], [out])
