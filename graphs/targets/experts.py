"""Replaces experts (MoE) by ONNX Runtime's operator, or by calls of our functions.

    MoE, QMoE       read the chosen experts' weights in place
    few choices     ExpertsGathered: the weights of all choices are copied at once
    more            ExpertsInBlocks, or ExpertsInEveryBlock for compilers

The functions are in `graphs/functions/experts.py`.

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

from snapexport.graphs.functions.experts import Experts, experts
from snapexport.graphs.markers import BLOCK_EXPERTS, EXPERTS, SWISH, TRACE_DOMAIN
from snapexport.graphs.passes.base import MICROSOFT, call, cut, fresh, int64s, node

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
                _replace_quantized(graph, marker)
            elif marker.inputs[0].dtype == np.float32:
                _replace_floats(graph, marker)


def _is_swiglu(marker: gs.Node) -> bool:
    return bool(marker.attrs["gated"] and marker.attrs["activation"] == SWISH)


def _replace_floats(graph: gs.Graph, marker: gs.Node) -> None:
    attributes = _moe_attributes(marker)
    (states, index, weights, gate_up, down, *biases), (out,) = cut(graph, marker)
    gate_up_bias, down_bias = biases or [gs.Variable.empty(), gs.Variable.empty()]
    (above_zero,) = node(graph, "Max", [weights, _constant(graph, np.array(_SMALLEST, np.float32))])
    (logarithms,) = node(graph, "Log", [above_zero])
    shape = (index.shape[0], gate_up.shape[0])
    not_chosen = np.full(shape, _NOT_CHOSEN, weights.dtype)
    scores = _scatter(graph, not_chosen, index, logarithms)
    inputs = [states, scores, gate_up, gate_up_bias, down, down_bias]
    attributes["normalize_routing_weights"] = 1
    (shared,) = node(graph, "MoE", inputs, domain=MICROSOFT, **attributes)
    (total,) = node(graph, "ReduceSum", [weights, int64s(graph, 1)], keepdims=1)
    node(graph, "Mul", [shared, total], [out])


def _replace_quantized(graph: gs.Graph, marker: gs.Node) -> None:
    attributes = _moe_attributes(marker) | {
        "expert_weight_bits": marker.attrs["gate_up_bits"],
        "fc2_expert_weight_bits": marker.attrs["down_bits"],
        "block_size": marker.attrs["block_size"],
        "normalize_routing_weights": 0,
    }
    (states, index, weights, *stored), (out,) = cut(graph, marker)
    # Zeros that are left out at the end are not inputs.
    stored += [gs.Variable.empty()] * (6 - len(stored))
    gate_up, gate_up_scales, gate_up_zeros, down, down_scales, down_zeros, *biases = stored
    gate_up_bias, down_bias = biases or [gs.Variable.empty(), gs.Variable.empty()]
    shape = (index.shape[0], gate_up.shape[0])
    every = _scatter(graph, np.zeros(shape, weights.dtype), index, weights)
    inputs = [states, every, gate_up, gate_up_scales, gate_up_bias, down, down_scales, down_bias]
    none = gs.Variable.empty
    inputs += [none(), none(), none(), gate_up_zeros, down_zeros, none(), every]
    node(graph, "QMoE", inputs, [out], domain=MICROSOFT, **attributes)


def _moe_attributes(marker: gs.Node) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "k": marker.inputs[1].shape[1],
        "activation_type": "swiglu",
        "swiglu_fusion": _INTERLEAVED,
        "activation_alpha": marker.attrs["alpha"],
        "activation_beta": marker.attrs["beta"],
    }
    return attributes | ({"swiglu_limit": limit} if (limit := marker.attrs["limit"]) else {})


def _scatter(
    graph: gs.Graph, everywhere: NDArray[Any], index: gs.Tensor, values: gs.Tensor
) -> gs.Tensor:
    """[N,E]: the values of the chosen experts, and those of `everywhere`."""
    inputs = [_constant(graph, everywhere), index, values]
    return node(graph, "ScatterElements", inputs, axis=1)[0]


def _constant(graph: gs.Graph, values: NDArray[Any]) -> gs.Constant:
    return gs.Constant(fresh(graph, "const"), values)


_GATHERED_VALUES = 1 << 27
"""Weights that ExpertsGathered may copy: 256 MB in 16 bits."""
_LARGEST_BLOCK = 128
_WEIGHTS = {
    EXPERTS: ("gate_up", "down"),
    BLOCK_EXPERTS: tuple(
        stack + part for stack in ("gate_up", "down") for part in ("", "_scales", "_zeros")
    ),
}
"""Inputs of a marker of experts (graphs/markers.py) between the routing and the biases."""
_NO_LIMIT = 3.0e38


@dataclass(frozen=True)
class ComposedExperts:
    """Every layer's experts. every_block: a fixed number of turns, since a compiler needs it."""

    every_block: bool = False

    def apply(self, graph: gs.Graph) -> None:
        for marker in [n for n in graph.nodes if n.domain == TRACE_DOMAIN and n.op in _WEIGHTS]:
            self._replace(graph, marker)

    def _replace(self, graph: gs.Graph, marker: gs.Node) -> None:
        of, attributes = _formula(marker), _attributes(marker)
        values = _values(marker)
        inputs, outputs = cut(graph, marker)
        inputs = [one for one in inputs if not one.is_empty()]
        (rows, k), (count, *_) = inputs[1].shape, inputs[3].shape
        if rows * k <= count and rows * k * values <= _GATHERED_VALUES:
            call(graph, experts("ExpertsGathered", of), inputs, outputs, **attributes)
            return
        block = block_rows(rows, k, count)
        attributes |= {"block": [block], "blocks": [most_blocks(rows, k, count, block)]}
        name = "ExpertsInEveryBlock" if self.every_block else "ExpertsInBlocks"
        call(graph, experts(name, of), inputs, outputs, **attributes)


def _formula(marker: gs.Node) -> Experts:
    weights = _WEIGHTS[marker.op]
    stored = zip(weights, marker.inputs[3:], strict=False)
    parts = tuple(name for name, one in stored if not one.is_empty())
    return Experts(
        biased=len(marker.inputs) > 3 + len(weights),
        activation=marker.attrs["activation"],
        gated=bool(marker.attrs["gated"]),
        integers=parts if marker.op == BLOCK_EXPERTS else (),
    )


def _attributes(marker: gs.Node) -> dict[str, Any]:
    """The attributes of the function."""
    rest = {name: one for name, one in marker.attrs.items() if name not in ("activation", "gated")}
    return rest | {"limit": rest["limit"] or _NO_LIMIT}


def _values(marker: gs.Node) -> int:
    """Weights of one expert: of two matrices, and a gate as large as the first."""
    states, wide = marker.inputs[0], marker.inputs[3]
    rows = wide.shape[1] * (1.5 if marker.attrs["gated"] else 2)
    return int(rows * states.shape[1])


def block_rows(rows: int, k: int, experts: int) -> int:
    """Rows of a block: about twice as many as choose an expert, and no more than there are."""
    mean = rows * k / experts
    return min(rows, _LARGEST_BLOCK, 1 << max(0, int(np.ceil(np.log2(2 * mean)))))


def most_blocks(rows: int, k: int, experts: int, block: int) -> int:
    """Most blocks that any choice of k different experts for each row can fill."""
    chosen = min(experts, rows * k)
    return min((rows * k + chosen * (block - 1)) // block, experts * -(-rows // block))
