"""Joins a build's decode graph and its graph of blocks into one that takes any number of tokens.

Begin      the place of the first token; an error where the cache lost what is before it
IsStep     one token, and no cache that begins to vote: decode, else blocks
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from onnx import ModelProto, OperatorSetIdProto, TensorProto, helper

from snapexport.contract import names
from snapexport.contract.geometry import CacheGeometry
from snapexport.genai.branches import PLACE, blocks_branch, step_branch
from snapexport.genai.caches import Caches, Place
from snapexport.genai.functions import BEGIN, DIGIT, IS_STEP, RECORD, TAKE_BLOCK, WRITE
from snapexport.genai.parts import Part, bodies, shape_of, value_info

REFUSAL = "the_cache_no_longer_holds_what_this_rewind_goes_back_to"
"""The name of the node that fails. ONNX Runtime's error has it, and so has the caller's."""
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
    """One model of the two, which are changed. Raises UserError for inputs that genai lacks.

    Inputs: input_ids and position_ids int64 [1,n], and `caches`. Outputs: logits float32 [1,1,V],
    and `caches` after the call. Pasts and presents may share their buffers.
    """
    graph = Part()
    _begin(graph, caches, routing)
    ends = _HELD if caches.is_flat else ""
    own = {past.name: place for past in caches.pasts for place in [caches.place_of(past)]}
    held = {name: place.past + ends for name, place in own.items()}
    for place in caches.places:
        _unfold(graph, place, caches.is_flat)
    step = step_branch(decode, held)
    loop = blocks_branch(blocks, held, routing.chunk, routing.voters)
    results = [place.present + ends for place in own.values()]
    graph.add("If", ["is_step"], "any_logits", *results, then_branch=step, else_branch=loop)
    graph.add("Unsqueeze", ["any_logits", graph.constant("axis", [1])], names.LOGITS)
    for place in caches.places:
        _fold(graph, place, caches.is_flat)
    _, vocabulary = shape_of(step.output[0])
    return _model(graph, caches, vocabulary, [decode, blocks])


def _begin(graph: Part, caches: Caches, routing: Routing) -> None:
    """The place of the first token, and whether decode takes it."""
    high, low = caches.record
    given = [names.INPUT_IDS, names.POSITION_IDS, high.past, low.past]
    limits = {"sinks": routing.sinks, "held": routing.held, "digit": DIGIT, "record": [RECORD]}
    graph.call(BEGIN, given, "begins", "fault", "happened", **limits)
    # Of the only element: a fault is the index of a second one. Nothing is written before.
    graph.add("Gather", [graph.constant("nothing", [0]), "fault"], "checked", name=REFUSAL)
    graph.add("Add", ["begins", "checked"], PLACE)
    graph.add("Add", ["happened", "checked"], "record")
    graph.call(WRITE, ["record", high.past], high.present, low.present, digit=DIGIT)
    sizes = [*routing.overflows] or [-1]
    graph.call(IS_STEP, [names.INPUT_IDS, PLACE], "is_step", sizes=sizes)


def _unfold(graph: Part, place: Place, is_flat: bool) -> None:
    """The build's shape of what is held flat. What only fills a pair goes on as it is."""
    if place.cache is None:
        graph.add("Identity", [place.past], place.present)
    elif is_flat:
        shape = graph.constant(f"{place.past}/shape", place.cache.shape)
        graph.add("Reshape", [place.past, shape], place.past + _HELD)


def _fold(graph: Part, place: Place, is_flat: bool) -> None:
    if place.cache is not None and is_flat:
        shape = graph.constant(f"{place.present}/shape", place.shape)
        graph.add("Reshape", [place.present + _HELD, shape], place.present)


def _model(graph: Part, caches: Caches, vocabulary: int, made_of: list[ModelProto]) -> ModelProto:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(caches.dtype))
    held = [*caches.places, *caches.record]
    inputs = [
        value_info(name, TensorProto.INT64, [1, _TOKENS])
        for name in (names.INPUT_IDS, names.POSITION_IDS)
    ]
    inputs += [value_info(one.past, kind, one.shape) for one in held]
    outputs = [value_info(names.LOGITS, TensorProto.FLOAT, [1, 1, vocabulary])]
    outputs += [value_info(one.present, kind, one.shape) for one in held]
    own = [function.proto() for function in (BEGIN, WRITE, IS_STEP, TAKE_BLOCK)]
    return helper.make_model(
        helper.make_graph(graph.nodes, "genai", inputs, outputs, graph.initializers),
        functions=bodies([*own, *(one for model in made_of for one in model.functions)]),
        opset_imports=_opsets(one for model in made_of for one in model.opset_import),
        ir_version=max(model.ir_version for model in made_of),
        producer_name=made_of[0].producer_name,
    )


def _opsets(found: Iterable[OperatorSetIdProto]) -> list[OperatorSetIdProto]:
    own = helper.make_opsetid(names.DOMAIN, 1)
    return [*{one.domain: one for one in (own, *found)}.values()]
