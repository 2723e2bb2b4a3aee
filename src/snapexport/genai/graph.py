"""Joins a build's decode graph and its graph of blocks into one that takes any number of tokens.

    Begin      the position of the first token; an error where the cache does not have what is
               before it any more
    IsStep     one token, and no cache that begins to vote: decode
               else the graph of blocks in a Loop, whose blocks are cut as in contract/pieces.py

Each branch has initializers of its own over the same files. A branch inside a branch that reads its
parent's weights would not get them packed, and steps of int4 weights would be three times slower.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

from snapexport.contract import names
from snapexport.contract.geometry import CacheGeometry
from snapexport.errors import UserError
from snapexport.genai.branches import keep_outputs, rename
from snapexport.genai.caches import Caches, Place, Shape
from snapexport.genai.functions import BEGIN, DIGIT, IS_STEP, RECORD, TAKE_BLOCK
from snapexport.graphs.functions import Function
from snapexport.graphs.passes.base import SurgeryError

REFUSAL = "the_cache_no_longer_holds_what_this_rewind_goes_back_to"
"""The name of the node that fails. ONNX Runtime's error has it, and the caller's has that."""

_STEP, _BLOCK = "step/", "block/"
_TOKENS = "n"
_HELD = "/held"
"""The end of the name of a cache in the build's own shape, where it is held flat."""


@dataclass(frozen=True)
class Routing:
    """chunk: tokens of a block. voters: of a prompt's end, after each block but the last.

    overflows: positions at which some cache that was whole begins to vote. held, sinks: positions
    that every cache holds without dropping any, and that every cache keeps.
    """

    chunk: int
    voters: int
    overflows: tuple[int, ...]
    held: int
    sinks: int

    @classmethod
    def of(cls, geometry: CacheGeometry, chunk: int) -> "Routing":
        """The routing of a build's prompts and steps."""
        layers = geometry.layers
        return cls(
            chunk=chunk,
            voters=geometry.block_voters(chunk),
            overflows=tuple(sorted({layer.size for layer in layers if layer.K})),
            held=min(layer.size for layer in layers),
            sinks=min(layer.L_sink for layer in layers),
        )


def join(decode: ModelProto, blocks: ModelProto, caches: Caches, routing: Routing) -> ModelProto:
    """One model of the two, which are changed. Raises UserError for what genai does not take.

    Inputs: input_ids and position_ids int64 [1,n], and `caches`. Outputs: logits float32 [1,1,V],
    and `caches` after the call.
    """
    _require_known(decode, {names.INPUT_IDS, names.POSITION_IDS, names.PROMPT_LENGTH}, "decode")
    graph = _Parent()
    begun = ["place", "fault", caches.record[0].present, caches.record[1].present]
    record = [place.past for place in caches.record]
    limits = {"sinks": routing.sinks, "held": routing.held, "digit": DIGIT, "record": [RECORD]}
    graph.call(BEGIN, [names.INPUT_IDS, names.POSITION_IDS, *record], begun, **limits)
    graph.constant("nothing", [0])
    graph.add("Gather", ["nothing", "fault"], ["checked"], name=REFUSAL)
    graph.add("Add", ["place", "checked"], ["begin"])
    sizes = [*routing.overflows] or [-1]
    graph.call(IS_STEP, [names.INPUT_IDS, "begin"], ["is_step"], sizes=sizes)
    for place in caches.places:
        _give(graph, place, caches.is_flat)

    presents = [names.present_of(past.name) for past in caches.pasts]
    logits = _logits(decode)
    step = _step(decode.graph, caches, presents)
    loop = _loop(blocks, caches, presents, routing, logits)
    outputs = ["any_logits", *(_held(place.present, caches) for place in _own(caches))]
    graph.add("If", ["is_step"], outputs, then_branch=step, else_branch=loop)
    graph.constant("logits_axis", [1])
    graph.add("Unsqueeze", ["any_logits", "logits_axis"], [names.LOGITS])
    for place in caches.places:
        _take(graph, place, caches.is_flat)
    return _model(graph, decode, blocks, caches, logits)


def _own(caches: Caches) -> list[Place]:
    """The places of the build's caches, in its graphs' order."""
    places = {place.cache.name: place for place in caches.places if place.cache}
    return [places[past.name] for past in caches.pasts]


def _held(name: str, caches: Caches) -> str:
    return name + _HELD if caches.is_flat else name


def _give(graph: "_Parent", place: Place, is_flat: bool) -> None:
    """A cache in the build's shape; what fills a pair goes on as it is."""
    if place.cache is None:
        graph.add("Identity", [place.past], [place.present])
    elif is_flat:
        shape = f"{place.past}/shape"
        graph.constant(shape, place.cache.shape)
        graph.add("Reshape", [place.past, shape], [place.past + _HELD])


def _take(graph: "_Parent", place: Place, is_flat: bool) -> None:
    if place.cache is not None and is_flat:
        shape = f"{place.present}/shape"
        graph.constant(shape, place.shape)
        graph.add("Reshape", [place.present + _HELD, shape], [place.present])


def _step(graph: GraphProto, caches: Caches, presents: Sequence[str]) -> GraphProto:
    """decode as a branch: its inputs are the parent's values."""
    pasts = {place.cache.name: _held(place.past, caches) for place in _own(caches) if place.cache}
    head = _Parent(_STEP)
    head.constant("axis", [0])
    head.constant("least", [1])
    head.add("Unsqueeze", ["begin", _STEP + "axis"], [_STEP + names.POSITION_IDS])
    # A cache is whole until the prompt is longer than it. Here all before the token is the prompt.
    head.add("Max", ["begin", _STEP + "least"], [_STEP + names.PROMPT_LENGTH])
    keep_outputs(graph, [names.LOGITS, *presents])
    rename(graph, _STEP, {names.INPUT_IDS: names.INPUT_IDS, **pasts})
    del graph.input[:]
    return head.before(graph)


def _loop(
    blocks: ModelProto,
    caches: Caches,
    presents: Sequence[str],
    routing: Routing,
    logits: tuple[int, Shape],
) -> GraphProto:
    """The blocks as a branch: a Loop, since a call may have any number of them."""
    body = _body(blocks, presents, routing)
    pasts = [_held(place.past, caches) for place in _own(caches)]
    results = [f"blocks/{place.present}" for place in _own(caches)]
    graph = _Parent("blocks/")
    graph.constant("always", True)
    graph.constant("start", [0])
    graph.fill("no_logits", *logits)
    given = ["", "blocks/always", "blocks/start", "blocks/no_logits", *pasts]
    graph.add("Loop", given, ["blocks/stop", "blocks/logits", *results], body=body)
    shapes = [place.cache.shape for place in _own(caches) if place.cache]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(caches.dtype))
    values = [helper.make_tensor_value_info("blocks/logits", *logits)]
    values += [
        helper.make_tensor_value_info(name, kind, shape)
        for name, shape in zip(results, shapes, strict=True)
    ]
    return helper.make_graph(graph.nodes, "blocks", [], values, graph.initializers)


def _body(blocks: ModelProto, presents: Sequence[str], routing: Routing) -> GraphProto:
    """One block: its tokens are cut from the parent's."""
    graph = blocks.graph
    pasts = [one for one in graph.input if names.is_past(one.name)]
    # Nothing but their own outputs follows from the positions that cache slots hold.
    idle = {names.slot_positions(names.number_of(one.name)) for one in pasts}
    fed = {names.INPUT_IDS, names.POSITION_IDS, names.CHUNK_LENGTH}
    _require_known(blocks, fed | idle, "block")
    ordered = sorted(pasts, key=lambda one: presents.index(names.present_of(one.name)))
    head = _Parent(_BLOCK)
    taken = [names.INPUT_IDS, names.POSITION_IDS, names.CHUNK_LENGTH, "stop", "goes_on"]
    given = [names.INPUT_IDS, "begin", _BLOCK + "start"]
    cut = {"chunk": routing.chunk, "voters": routing.voters}
    head.call(TAKE_BLOCK, given, [_BLOCK + name for name in taken], **cut)
    for one in (one for one in graph.input if one.name in idle):
        head.fill(one.name, one.type.tensor_type.elem_type, _shape(one), -1)
    keep_outputs(graph, [names.LOGITS, *presents])
    logits = onnx.ValueInfoProto()
    logits.CopyFrom(graph.output[0])
    logits.name = "logits_before"
    del graph.input[:]
    graph.input.extend(
        [
            helper.make_tensor_value_info("round", TensorProto.INT64, []),
            helper.make_tensor_value_info("was_going_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("start", TensorProto.INT64, [1]),
            logits,
            *ordered,
        ]
    )
    rename(graph, _BLOCK, {})
    values = [*graph.output]
    del graph.output[:]
    graph.output.extend(
        [
            helper.make_tensor_value_info(_BLOCK + "goes_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info(_BLOCK + "stop", TensorProto.INT64, [1]),
            *values,
        ]
    )
    return head.before(graph)


class _Parent:
    """Nodes and initializers that are added to a graph. stem: begins the initializers' names."""

    def __init__(self, stem: str = "") -> None:
        self.nodes: list[NodeProto] = []
        self.initializers: list[TensorProto] = []
        self.functions: list[Function] = []
        self._stem = stem

    def add(
        self, op: str, inputs: Sequence[str], outputs: Sequence[str], *, name: str = "", **attrs: object
    ) -> None:
        """A node. name: by default its first output's, after its operator."""
        name = name or f"{op}_{outputs[0]}"
        self.nodes.append(helper.make_node(op, inputs, outputs, name=name, **attrs))

    def call(
        self, function: Function, inputs: Sequence[str], outputs: Sequence[str], **attrs: object
    ) -> None:
        """A call of a function, whose body the model then has to hold."""
        self.add(function.name, inputs, outputs, domain=names.DOMAIN, **attrs)

    def constant(self, name: str, value: object) -> None:
        """An initializer, int64 unless it is a bool."""
        kind = np.bool_ if isinstance(value, bool) else np.int64
        self.initializers.append(numpy_helper.from_array(np.array(value, kind), self._stem + name))

    def fill(self, name: str, kind: int, shape: Shape, value: int = 0) -> None:
        """An initializer of equal values."""
        array = np.full(shape, value, helper.tensor_dtype_to_np_dtype(kind))
        self.initializers.append(numpy_helper.from_array(array, self._stem + name))

    def before(self, graph: GraphProto) -> GraphProto:
        """The graph with these nodes before its own."""
        nodes = [*self.nodes, *graph.node]
        del graph.node[:]
        graph.node.extend(nodes)
        graph.initializer.extend(self.initializers)
        return graph


def _model(
    graph: _Parent,
    decode: ModelProto,
    blocks: ModelProto,
    caches: Caches,
    logits: tuple[int, Shape],
) -> ModelProto:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(caches.dtype))
    held = [*caches.places, *caches.record]
    tokens = [
        helper.make_tensor_value_info(name, TensorProto.INT64, [1, _TOKENS])
        for name in (names.INPUT_IDS, names.POSITION_IDS)
    ]
    pasts = [helper.make_tensor_value_info(one.past, kind, one.shape) for one in held]
    presents = [helper.make_tensor_value_info(one.present, kind, one.shape) for one in held]
    dtype, (_, vocabulary) = logits
    scores = helper.make_tensor_value_info(names.LOGITS, dtype, [1, 1, vocabulary])
    joined = helper.make_graph(
        graph.nodes, "genai", [*tokens, *pasts], [scores, *presents], graph.initializers
    )
    own = [function.proto() for function in (BEGIN, IS_STEP, TAKE_BLOCK)]
    return helper.make_model(
        joined,
        functions=_functions([*own, *decode.functions, *blocks.functions]),
        opset_imports=_opsets([*decode.opset_import, *blocks.opset_import]),
        ir_version=max(decode.ir_version, blocks.ir_version),
        producer_name=decode.producer_name,
    )


def _functions(found: Iterable[onnx.FunctionProto]) -> list[onnx.FunctionProto]:
    """Each once. Raises SurgeryError for one name with two bodies."""
    by_name: dict[str, onnx.FunctionProto] = {}
    for one in found:
        if by_name.setdefault(one.name, one) != one:
            raise SurgeryError(f"decode and the graph of blocks have two bodies of {one.name}")
    return [*by_name.values()]


def _opsets(found: Iterable[onnx.OperatorSetIdProto]) -> list[onnx.OperatorSetIdProto]:
    own = helper.make_opsetid(names.DOMAIN, 1)
    by_domain = {one.domain: one for one in (own, *found)}
    return [*by_domain.values()]


def _require_known(model: ModelProto, fed: set[str], graph: str) -> None:
    for value in model.graph.input:
        if value.name not in fed and not names.is_past(value.name):
            raise _unknown(value.name, graph)


def _unknown(name: str, graph: str) -> UserError:
    return UserError(
        f"the build's {graph} graph takes {name}, which onnxruntime-genai does not pass",
        "build it again with --target onnxruntime --batch 1 --extend and no further options",
    )


def _logits(model: ModelProto) -> tuple[int, Shape]:
    value = next(one for one in model.graph.output if one.name == names.LOGITS)
    return value.type.tensor_type.elem_type, _shape(value)


def _shape(value: ValueInfoProto) -> Shape:
    return tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
