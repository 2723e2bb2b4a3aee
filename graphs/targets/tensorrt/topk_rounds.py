"""Splits a TopK that is too large for TensorRT into several rounds, in the bodies that select.

TensorRT's layer gives at most 3,840 elements; a larger K fails only when the engine is built. Each
round takes the best of the remaining elements and marks them as taken. The concatenated rounds
equal one large TopK, in order and with ties to the lower position. The plugin SnapKVSelect has no
such limit and does not use the rounds.
"""

from math import ceil

import onnx
from onnx.helper import make_attribute, make_node

from snapexport.contract.names import DOMAIN
from snapexport.contract.targets import capabilities

MOST = capabilities("tensorrt").largest_topk or 0

_SELECT = "SnapKVSelect", "SelectVoted"
_PER_ROUND = "K_per_round"


def split_topk(model: onnx.ModelProto) -> None:
    """Change the body that selects if a call has K > MOST.

    The calls get an attribute K_per_round (ints, [n]), which the plugin ignores.
    """
    calls = [n for n in model.graph.node if n.domain == DOMAIN and n.op_type in _SELECT]
    rounds = max((ceil(_topk(call) / MOST) for call in calls), default=1)
    if rounds == 1:
        return
    for call in calls:
        call.attribute.append(make_attribute(_PER_ROUND, [ceil(_topk(call) / rounds)]))
    for function in model.functions:
        if function.name in _SELECT:
            _split(function, rounds)


def _topk(call: onnx.NodeProto) -> int:
    return int(next(a.ints[0] for a in call.attribute if a.name == "K"))


def _split(function: onnx.FunctionProto, rounds: int) -> None:
    function.attribute.append(_PER_ROUND)
    nodes = _constants()
    for node in function.node:
        nodes.extend(_rounds(node, rounds) if node.op_type == "TopK" else [node])
    del function.node[:]
    function.node.extend(nodes)


def _rounds(topk: onnx.NodeProto, rounds: int) -> list[onnx.NodeProto]:
    """The nodes that replace a TopK along the last axis; their outputs have its outputs' names."""
    (left, k), outputs = topk.input, topk.output
    stem, largest = outputs[0], _is_largest(topk)
    nodes = _loser(stem, left, largest)
    taken: list[list[str]] = []
    for number in range(rounds):
        best = [f"{stem}_{output}_{number}" for output in ("values", "places")]
        taken.append(best)
        nodes.append(make_node("TopK", [left, "round_size"], best, axis=-1, largest=largest))
        if number + 1 < rounds:
            nodes.extend(_without(left, best[1], stem, number))
            left = f"{stem}_left_{number}"
    for output, names in zip(outputs, zip(*taken, strict=True), strict=True):
        # All rounds have one size, so the last may have taken more than K needs.
        nodes.append(make_node("Concat", names, [f"{output}_all"], axis=-1))
        sliced = [f"{output}_all", "round_first", k, "round_axis"]
        nodes.append(make_node("Slice", sliced, [output]))
    return nodes


def _is_largest(topk: onnx.NodeProto) -> int:
    return int(next((a.i for a in topk.attribute if a.name == "largest"), 1))


def _loser(stem: str, values: str, largest: int) -> list[onnx.NodeProto]:
    """Nodes that compute {stem}_loser, a number that sorts after all the values."""
    extreme, step = ("ReduceMin", "Sub") if largest else ("ReduceMax", "Add")
    return [
        make_node("Constant", [], [f"{stem}_1"], value_int=1),
        make_node("CastLike", [f"{stem}_1", values], [f"{stem}_step"]),
        make_node(extreme, [values], [f"{stem}_extreme"]),
        make_node(step, [f"{stem}_extreme", f"{stem}_step"], [f"{stem}_loser"]),
    ]


def _without(left: str, places: str, stem: str, number: int) -> list[onnx.NodeProto]:
    """Nodes that compute {stem}_left_{number}: the values, those at `places` marked as taken."""
    shape, losers = f"{stem}_shape_{number}", f"{stem}_losers_{number}"
    return [
        make_node("Shape", [places], [shape]),
        make_node("Expand", [f"{stem}_loser", shape], [losers]),
        make_node("ScatterElements", [left, places, losers], [f"{stem}_left_{number}"], axis=-1),
    ]


def _constants() -> list[onnx.NodeProto]:
    """round_size, from the call's attribute, and the constants of the slices."""
    size = make_node("Constant", [], ["round_size"])
    reference = onnx.AttributeProto(
        name="value_ints", ref_attr_name=_PER_ROUND, type=onnx.AttributeProto.INTS
    )
    size.attribute.append(reference)
    first = make_node("Constant", [], ["round_first"], value_ints=[0])
    return [size, first, make_node("Constant", [], ["round_axis"], value_ints=[-1])]
