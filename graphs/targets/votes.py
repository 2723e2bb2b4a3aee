"""Fits votes to targets: over the prompt's prefix, one after another, with a TopK in rounds.

A vote reads every position of a full-length cache, which for a short prompt is mostly padding. ONNX
Runtime takes tensors of a computed size, so keys are sliced at the prompt's end. TensorRT does not,
but its plugin stops at the prompt's end.

A TopK gives at most 3,840 elements in TensorRT's layer; a larger K fails only when the engine is
built. Each round takes the best of the remaining elements and marks them as taken. The concatenated
rounds equal one large TopK, in order and with ties to the lower position. The plugin SnapKVSelect
has no such limit and does not use the rounds.

Since 10.15 TensorRT's parser prefers a function's body to a plugin of its name. It takes the plugin
if the call has the attribute plugin_namespace and the parser's flag ENABLE_PLUGIN_OVERRIDE is set
(`snapexport engine --plugins` sets it). ONNX requires that the function declares the attribute too.

The votes of a compress graph depend on nothing of each other, and a compiler plans them side by
side: the scores of all layers are alive at the same time. TensorRT for RTX 1.7 took 15 GB of
scratch memory for Llama-3.1-8B's shapes at 131,072 positions, and takes 0.2 GB for votes in turn.
"""

from dataclasses import dataclass
from itertools import pairwise
from math import ceil

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx.helper import make_attribute, make_node

from snapexport.contract.names import DOMAIN
from snapexport.contract.targets import capabilities
from snapexport.graphs.passes.base import FunctionCall, fresh, int64s, node, on_the_host

_POSITIONS = 2
"""The axis of positions in key [1,Hkv,T,D] and in votes [1,Hkv,T]."""
_UNUSED = -1
"""The smallest value of topk_positions."""


def _votes(graph: gs.Graph) -> list[FunctionCall]:
    return [one for one in graph.nodes if isinstance(one, FunctionCall) and one.function.votes]


@dataclass(frozen=True)
class VotedPrefix:
    """Gives votes only the keys up to the prompt's end, or to that of what is repeated after it."""

    def apply(self, graph: gs.Graph) -> None:
        by_key: dict[str, list[FunctionCall]] = {}
        for vote in _votes(graph):
            by_key.setdefault(vote.inputs[1].name, []).append(vote)
        for votes in by_key.values():
            if "K" in votes[0].attrs:
                self._shorten_selection(graph, votes)
            else:
                self._shorten_count(graph, votes)

    def _shorten_selection(self, graph: gs.Graph, votes: list[FunctionCall]) -> None:
        _, key, prompt_length = votes[0].inputs
        (K,) = votes[0].attrs["K"]
        # TopK needs at least K positions.
        (end,) = node(graph, "Max", [prompt_length, int64s(graph, K)])
        _shorten(graph, votes, key, on_the_host(graph, end))

    def _shorten_count(self, graph: gs.Graph, votes: list[FunctionCall]) -> None:
        """Shorten the keys that several votes read, and fill up what comes out with zeros."""
        window, key, prompt_length = votes[-1].inputs
        rows, whole = votes[-1].attrs["first_row"] + window.shape[2], key.shape[_POSITIONS]
        (end,) = node(graph, "Add", [prompt_length, int64s(graph, rows)])
        (missing,) = node(graph, "Sub", [int64s(graph, whole), end])
        (pads,) = node(graph, "Concat", [int64s(graph, *[0] * 5), missing], axis=0)
        _shorten(graph, votes, key, on_the_host(graph, end))
        for vote in votes:
            (padded,) = vote.outputs
            vote.outputs = [gs.Variable(fresh(graph, "shorter"), padded.dtype)]
            node(graph, "Pad", [vote.outputs[0], on_the_host(graph, pads)], [padded])


def _shorten(graph: gs.Graph, votes: list[FunctionCall], key: gs.Tensor, end: gs.Tensor) -> None:
    """Let the votes read keys up to `end`: sliced before a Concat, where latents are joined."""
    if key.inputs and key.inputs[0].op == "Concat":
        key.shape = None  # it is now as long as the prompt
        joined = key.inputs[0]
        for index, part in enumerate(joined.inputs):
            joined.inputs[index] = _slice(graph, part, end)
        return
    shorter = _slice(graph, key, end)
    for vote in votes:
        vote.inputs[1] = shorter


def _slice(graph: gs.Graph, tensor: gs.Tensor, end: gs.Tensor) -> gs.Tensor:
    slices = [int64s(graph, 0), end, int64s(graph, _POSITIONS)]
    return node(graph, "Slice", [tensor, *slices])[0]


@dataclass(frozen=True)
class VotesInTurn:
    """Computes the prompt length of each vote from the output of the last."""

    def apply(self, graph: gs.Graph) -> None:
        for earlier, later in pairwise(_votes(graph)):
            unused = int64s(graph, _UNUSED)
            lowest = node(graph, "ReduceMin", [earlier.outputs[0]], keepdims=0)
            if earlier.outputs[0].dtype != np.int64:
                lowest = node(graph, "Cast", lowest, to=onnx.TensorProto.INT64)
            # It is -1 whatever was kept, and the larger of it and a length is the length.
            bound = node(graph, "Min", [*lowest, unused])
            (later.inputs[2],) = node(graph, "Max", [later.inputs[2], *bound])


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
    for one in function.node:
        nodes.extend(_rounds(one, rounds) if one.op_type == "TopK" else [one])
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


PLUGINS = ("SnapKVSelect", "SnapStreamGather")
"""The functions for which plugins/ has a fused kernel."""

_NAMESPACE = "plugin_namespace"


def allow_plugins(model: onnx.ModelProto) -> None:
    """Give every call of PLUGINS the namespace of our plugins, which is empty."""
    for one in model.graph.node:
        if one.domain == DOMAIN and one.op_type in PLUGINS:
            one.attribute.append(make_attribute(_NAMESPACE, ""))
    for function in model.functions:
        if function.name in PLUGINS:
            function.attribute.append(_NAMESPACE)
