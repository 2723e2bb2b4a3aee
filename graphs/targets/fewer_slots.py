"""Lets a decode step read only the first cache slots while no others are valid.

Valid cache slots come first. ONNX Runtime's Attention goes through all of them and hides the empty
ones: a step after 400 tokens took as long as one after 30,000.

    If(valid <= S/4, If(valid <= S/16, Attention(S/16 slots), Attention(S/4)), Attention(S))

Shapes stay fixed. The slots that are read, [B,Hkv,S/4,D] at most, are copied, a layer's at a time.
A step over a filled cache takes as long as before.

Logits are the same bit by bit, so that a request's do not depend on how long its neighbours are:
numbers of slots are multiples of what ONNX Runtime adds up at once.
"""

from collections.abc import Sequence
from itertools import starmap
from typing import Any

import onnx
from onnx.helper import make_graph, make_node, make_tensor, make_tensor_value_info

from snapexport.contract.targets import FEWER_SLOTS

_KEY, _VALUE, _MASK, _VALID = 1, 2, 3, 6
"""Inputs of Attention."""
_SLOTS = 2
"""The axis of cache slots in a cache [B,Hkv,S,D]."""
_AT_ONCE = 64
"""Scores that ONNX Runtime's softmax adds up at once, with AVX-512."""


def read_fewer_slots(model: onnx.ModelProto) -> None:
    """Change every Attention of one row for each batch slot over the valid slots of fp32 caches."""
    caches = {one.name: one.type.tensor_type for one in model.graph.output}
    constants, conditions = dict(_SLICE), dict[str, list[onnx.NodeProto]]()
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        cache = caches.get(node.input[_KEY]) if _is_step(node) else None
        if cache is None or cache.elem_type != onnx.TensorProto.FLOAT:
            nodes.append(node)
            continue
        slots, valid = cache.shape.dim[_SLOTS].dim_value, node.input[_VALID]
        rounded = (slots // part // _AT_ONCE * _AT_ONCE for part in FEWER_SLOTS)
        fewer = [size for size in rounded if size]
        for size in fewer:
            constants[_end(size)] = size
            if (name := _condition(valid, size)) not in conditions:
                conditions[name] = _fits(valid, size)
                nodes += conditions[name]
        nodes += _attend(node, node.output[0], None, fewer)
    if conditions:
        del model.graph.node[:]
        model.graph.node.extend(nodes)
        model.graph.initializer.extend(starmap(_ints, constants.items()))


def _is_step(node: onnx.NodeProto) -> bool:
    has_lengths = node.op_type == "Attention" and len(node.input) > _VALID
    is_causal = any(one.name == "is_causal" and one.i for one in node.attribute)
    return has_lengths and not node.input[_MASK] and not is_causal


def _attend(
    node: onnx.NodeProto, out: str, slots: int | None, fewer: Sequence[int]
) -> list[onnx.NodeProto]:
    """Attention over the first `slots` (None: all), or over `fewer` where no more are valid."""
    if not fewer:
        return _over(node, out, slots)
    size, *others = fewer
    branches = {
        "then_branch": _branch(_attend(node, f"{out}_{size}", size, others)),
        "else_branch": _branch(_over(node, f"{out}_all", slots)),
    }
    return [_node("If", [_condition(node.input[_VALID], size)], out, **branches)]


def _over(node: onnx.NodeProto, out: str, slots: int | None) -> list[onnx.NodeProto]:
    """The same attention over the first cache slots. None: over all, which are not copied."""
    attention = onnx.NodeProto()
    attention.CopyFrom(node)
    attention.name = attention.output[0] = out
    if slots is None:
        return [attention]
    copies = []
    for at in (_KEY, _VALUE):
        attention.input[at] = f"{out}_{at}"
        ends = [_FIRST, _end(slots), _AXIS]
        copies.append(_node("Slice", [node.input[at], *ends], attention.input[at]))
    return [*copies, attention]


def _branch(nodes: list[onnx.NodeProto]) -> onnx.GraphProto:
    (out,) = nodes[-1].output
    value = make_tensor_value_info(out, onnx.TensorProto.FLOAT, None)
    return make_graph(nodes, out, [], [value])


def _condition(valid: str, size: int) -> str:
    """The name of a bool [1]: no batch slot has more valid cache slots. valid: int64 [B]."""
    return f"{valid}_within_{size}"


def _fits(valid: str, size: int) -> list[onnx.NodeProto]:
    condition = _condition(valid, size)
    most = f"{condition}_most"
    return [
        _node("ReduceMax", [valid], most, keepdims=1),
        _node("LessOrEqual", [most, _end(size)], condition),
    ]


def _node(op: str, inputs: list[str], out: str, **attributes: Any) -> onnx.NodeProto:
    """Named as its output is."""
    return make_node(op, inputs, [out], out, **attributes)


_FIRST, _AXIS = "fewer_slots_first", "fewer_slots_axis"
_SLICE = {_FIRST: 0, _AXIS: _SLOTS}
"""Constants of every Slice, by name."""


def _end(size: int) -> str:
    return f"fewer_slots_{size}"


def _ints(name: str, value: int) -> onnx.TensorProto:
    return make_tensor(name, onnx.TensorProto.INT64, [1], [value])
