"""Makes the two branches of the joined graph, of a build's decode graph and its graph of blocks.

Each branch keeps initializers of its own over the same files. ONNX Runtime packs no weight that a
branch inside a branch reads of their parent, and blocks of int4 weights would take three times as
long; packing is by operator, so that one initializer for both would save no memory.
"""

from collections.abc import Mapping, Sequence

from onnx import GraphProto, ModelProto, TensorProto, helper

from snapexport.contract import names
from snapexport.errors import UserError
from snapexport.genai.functions import TAKE_BLOCK
from snapexport.genai.parts import Part, copy_as, order, rename, replace, value_info

PLACE = "place"
"""The parent's value: int64 [1], the position in the cache of the call's first token."""
_STEP, _LOOP, _BLOCK = "step/", "blocks/", "block/"


def step_branch(decode: ModelProto, held: Mapping[str, str]) -> GraphProto:
    """decode, which is changed: logits [1,V] and the caches after the step.

    held: {cache input of the build: the parent's value}, in the order of the outputs.
    """
    _require_known(decode, {names.INPUT_IDS, names.POSITION_IDS, names.PROMPT_LENGTH, *held})
    graph, head = decode.graph, Part(_STEP)
    axis, least = head.constant("axis", [0]), head.constant("least", [1])
    head.add("Unsqueeze", [PLACE, axis], names.POSITION_IDS)
    # A cache is whole while the prompt fits into it. Here all before the token is the prompt.
    head.add("Max", [PLACE, least], names.PROMPT_LENGTH)
    order(graph.output, _results(held))
    rename(graph, _STEP, {names.INPUT_IDS: names.INPUT_IDS, **held})
    replace(graph.input, [])
    head.put_before(graph)
    return graph


def blocks_branch(
    blocks: ModelProto, held: Mapping[str, str], chunk: int, voters: int
) -> GraphProto:
    """Blocks in a Loop, since a call may have any number of them; outputs as of `step_branch`.

    blocks: is changed. chunk, voters: as in contract/pieces.py.
    """
    # Nothing but their own outputs follows from the positions that cache slots hold.
    idle = [names.slot_positions(names.number_of(name)) for name in held]
    fed = {names.INPUT_IDS, names.POSITION_IDS, names.CHUNK_LENGTH, names.PAST_LENGTH}
    _require_known(blocks, {*fed, *idle, *held})
    order(blocks.graph.output, _results(held))
    logits, *after = (copy_as(one, _LOOP + one.name) for one in blocks.graph.output)
    graph = Part(_LOOP)
    given = [
        "",
        graph.constant("always", True),
        graph.constant("start", [0]),
        graph.fill("none", logits, 0),
        *held.values(),
    ]
    body = _body(blocks, held, idle, {"chunk": chunk, "voters": voters})
    outputs = [one.name.removeprefix(_LOOP) for one in (logits, *after)]
    graph.add("Loop", given, "stop", *outputs, body=body)
    return helper.make_graph(graph.nodes, "blocks", [], [logits, *after], graph.initializers)


def _body(
    blocks: ModelProto, held: Mapping[str, str], idle: Sequence[str], cut: Mapping[str, int]
) -> GraphProto:
    """One block, which the Loop carries on: where it starts, logits, and the caches."""
    graph, head = blocks.graph, Part(_BLOCK)
    taken = names.INPUT_IDS, names.POSITION_IDS, names.CHUNK_LENGTH, "stop", "goes_on"
    head.call(TAKE_BLOCK, [names.INPUT_IDS, PLACE, _BLOCK + "start"], *taken, **cut)
    head.add("Add", [PLACE, _BLOCK + "start"], names.PAST_LENGTH)
    for value in graph.input:
        if value.name in idle:
            head.fill(value.name, value, -1)
    order(graph.input, held)
    before = [
        value_info("round", TensorProto.INT64, []),
        value_info("went_on", TensorProto.BOOL, []),
        value_info("start", TensorProto.INT64, [1]),
        copy_as(graph.output[0], "logits_before"),
    ]
    after = [
        value_info("goes_on", TensorProto.BOOL, []),
        value_info("stop", TensorProto.INT64, [1]),
    ]
    replace(graph.input, [*before, *graph.input])
    replace(graph.output, [*after, *graph.output])
    rename(graph, _BLOCK, {})
    head.put_before(graph)
    return graph


def _results(held: Mapping[str, str]) -> list[str]:
    return [names.LOGITS, *map(names.present_of, held)]


def _require_known(model: ModelProto, known: set[str]) -> None:
    """Raise UserError for an input that nobody would feed."""
    unknown = [value.name for value in model.graph.input if value.name not in known]
    if unknown:
        raise UserError(
            f"the build's graph {model.graph.name} takes {unknown[0]}, which onnxruntime-genai "
            "does not pass",
            "build it again without the flags that change what a step takes",
        )
