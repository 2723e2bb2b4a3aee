"""Replaces experts by ONNX Runtime's MoE, which reads the chosen experts' weights in place.

MoE chooses by itself: it takes a softmax of the scores of all experts, keeps the k largest and
divides them by their sum. The logarithms of a trace's weights as scores, and a very low one for the
other experts, give back the weights up to their sum, by which the result is multiplied. So any
routing is right.

Its kernel for a CPU has no bfloat16, and takes float16 scores, whose logarithms are coarse: other
types than float32 get `ComposedExperts`, as do experts without a gate or with another function than
SiLU's. QMoE, for integers, takes the weights themselves.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from snapexport.graphs.markers import BLOCK_EXPERTS, EXPERTS, SWISH, TRACE_DOMAIN
from snapexport.graphs.passes.base import cut, fresh, int64s, node
from snapexport.graphs.targets.group_query_attention import MICROSOFT

_SMALLEST = 1e-30
"""A weight of zero has a logarithm too."""
_NOT_CHOSEN = -1e4
"""A score whose share in a softmax is zero."""
_INTERLEAVED = 1
"""swiglu_fusion: gates and ups are rows in turn."""


@dataclass(frozen=True)
class MoE:
    """All experts in fp32, and all whose weights are integers."""

    def apply(self, graph: gs.Graph) -> None:
        for marker in [n for n in graph.nodes if n.domain == TRACE_DOMAIN]:
            if marker.op not in (EXPERTS, BLOCK_EXPERTS) or not _is_swiglu(marker):
                continue
            if marker.op == BLOCK_EXPERTS:
                _quantized(graph, marker)
            elif marker.inputs[0].dtype == np.float32:
                _whole(graph, marker)


def _is_swiglu(marker: gs.Node) -> bool:
    return bool(marker.attrs["gated"] and marker.attrs["activation"] == SWISH)


def _whole(graph: gs.Graph, marker: gs.Node) -> None:
    attributes = _attributes(marker)
    (states, index, weights, gate_up, down, *biases), (out,) = cut(graph, marker)
    gate_up_bias, down_bias = biases or [gs.Variable.empty(), gs.Variable.empty()]
    (above_zero,) = node(graph, "Max", [weights, _constant(graph, np.array(_SMALLEST, np.float32))])
    (logarithms,) = node(graph, "Log", [above_zero])
    shape = (index.shape[0], gate_up.shape[0])
    not_chosen = np.full(shape, _NOT_CHOSEN, weights.dtype)
    scores = _scattered(graph, not_chosen, index, logarithms)
    inputs = [states, scores, gate_up, gate_up_bias, down, down_bias]
    attributes["normalize_routing_weights"] = 1
    (shared,) = node(graph, "MoE", inputs, domain=MICROSOFT, **attributes)
    (total,) = node(graph, "ReduceSum", [weights, int64s(graph, 1)], keepdims=1)
    node(graph, "Mul", [shared, total], [out])


def _quantized(graph: gs.Graph, marker: gs.Node) -> None:
    attributes = _attributes(marker) | {
        "expert_weight_bits": marker.attrs["gate_up_bits"],
        "fc2_expert_weight_bits": marker.attrs["down_bits"],
        "block_size": marker.attrs["block_size"],
        "normalize_routing_weights": 0,
    }
    (states, index, weights, *stored), (out,) = cut(graph, marker)
    # Zeros that are left out at the end are no inputs.
    stored += [gs.Variable.empty()] * (6 - len(stored))
    gate_up, gate_up_scales, gate_up_zeros, down, down_scales, down_zeros, *biases = stored
    gate_up_bias, down_bias = biases or [gs.Variable.empty(), gs.Variable.empty()]
    shape = (index.shape[0], gate_up.shape[0])
    every = _scattered(graph, np.zeros(shape, weights.dtype), index, weights)
    inputs = [states, every, gate_up, gate_up_scales, gate_up_bias, down, down_scales, down_bias]
    none = gs.Variable.empty
    inputs += [none(), none(), none(), gate_up_zeros, down_zeros, none(), every]
    node(graph, "QMoE", inputs, [out], domain=MICROSOFT, **attributes)


def _attributes(marker: gs.Node) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "k": marker.inputs[1].shape[1],
        "activation_type": "swiglu",
        "swiglu_fusion": _INTERLEAVED,
        "activation_alpha": marker.attrs["alpha"],
        "activation_beta": marker.attrs["beta"],
    }
    return attributes | ({"swiglu_limit": limit} if (limit := marker.attrs["limit"]) else {})


def _scattered(
    graph: gs.Graph, everywhere: NDArray[Any], index: gs.Tensor, values: gs.Tensor
) -> gs.Tensor:
    """[N,E]: the values of the chosen experts, and those of `everywhere`."""
    inputs = [_constant(graph, everywhere), index, values]
    return node(graph, "ScatterElements", inputs, axis=1)[0]


def _constant(graph: gs.Graph, values: NDArray[Any]) -> gs.Constant:
    return gs.Constant(fresh(graph, "const"), values)
