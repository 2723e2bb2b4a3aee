"""Reads a graph of a build into OpenVINO: weights mapped, and caches only read."""

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset16 as op

from snapexport.contract.manifest import REBUILD, GraphEntry
from snapexport.errors import UserError, first_line
from snapexport.files.untrusted import GRAPH_BYTES, read_bytes
from snapexport.runtime.engine.backend import require_promised
from snapexport.runtime.engine.graph_file import (
    MappedWeights,
    Message,
    WeightSpan,
    read_model,
    take_weights,
)
from snapexport.runtime.openvino.attention import CacheOperators, Prefix
from snapexport.runtime.openvino.operators import (
    TOP_K,
    IntegerProducts,
    Value,
    forget_ties,
    identity,
    ints,
    turn_products,
)

_LENT = 1 << 10
"""Elements of an input from which on its memory matters."""

Kind = tuple[tuple[int, ...], np.dtype[Any]]
"""A shape and a type."""


@dataclass(frozen=True)
class HostWrite:
    """A write of the host's into a cache, by the numbers of the outputs that have its parts.

    states: new keys or values, [B,H,C,D]. start: their first cache slot in each row, int64 [B].
    """

    states: int
    start: int


@dataclass(frozen=True)
class Read:
    """A graph's inputs and outputs, known after its model and weights were let go of.

    inputs: names of those that it reads whole. prefixes: of those that it reads in parts, the
    numbers of the inputs that have each head's first states [n,D], and the input that says n.
    outputs: in OpenVINO's order, by the file's names; None: the host writes it into caches. writes:
    by the file's outputs that it has no more.
    """

    inputs: frozenset[str]
    prefixes: Mapping[str, tuple[Sequence[int], str]]
    outputs: Sequence[tuple[str | None, Kind]]
    writes: Mapping[str, HostWrite]


def read_graph(
    path: Path, entry: GraphEntry, weights: MappedWeights, *, dynamic: bool
) -> tuple[Any, Read]:
    """OpenVINO's model, and what is known of it. Raises UserError.

    Also for a file that is not the graph of the manifest. weights: have to last as long as what is
    compiled, since OpenVINO holds only addresses. dynamic: the device takes computed shapes.
    """
    try:
        file = read_model(read_bytes(path, GRAPH_BYTES, REBUILD))
        named = {value.name for value in file.graph.input}
        spans = take_weights(file.graph, path.parent)
        _attend_to_all_slots(file.graph)
    except (ValueError, KeyError, IndexError, RecursionError) as error:
        raise UserError(
            f"{path} is not a graph of this target: {first_line(error)}", REBUILD
        ) from None
    core, caches = ov.Core(), CacheOperators(dynamic=dynamic)
    products = IntegerProducts(lambda name: weights.bytes_of(spans[name]))
    for extension in (TOP_K, *caches.extensions(), products.extension()):
        core.add_extension(extension)
    try:
        model = core.read_model(io.BytesIO(file.SerializeToString()))
        forget_ties(model)
        turn_products(model)
        _put_weights(model, weights, spans)
        names, writes = _leave_to_the_host(model, [one.name for one in file.graph.output], caches)
    except Exception as error:  # OpenVINO's exceptions share no narrower public base
        raise UserError(f"OpenVINO cannot read {path}: {first_line(error)}", REBUILD) from error
    inputs = {name: _kind(port) for port in model.inputs for name in port.get_names()}
    prefixes = _lend_prefixes(model, caches.prefixes)
    outputs = list(zip(names, map(_kind, model.outputs), strict=True))
    # OpenVINO drops an input that nothing reads.
    read = [one for one in entry.inputs if one.name in inputs or one.name not in named]
    kept = [one for one in entry.outputs if one.name not in writes]
    found = inputs | {name: kind for name, kind in outputs if name}
    promised = [one for one in (*read, *kept) if one.name in found]
    described = {one.name: _describe(found[one.name]) for one in promised}
    require_promised(path.name, (*read, *kept), described)
    if dynamic:
        _lend_inputs(model)
    whole = {name for port in model.inputs for name in port.get_names()}
    return model, Read(frozenset(whole & inputs.keys()), prefixes, outputs, writes)


def _attend_to_all_slots(graph: Message) -> None:
    """Put attention over whole caches in the place of a choice, whose branches read no write."""
    for node in graph.node:
        for branch in node.attribute:
            if node.op_type == "If" and branch.name == "else_branch":
                (whole,) = branch.g.node
                whole.output[:] = node.output
                node.ParseFromString(whole.SerializeToString())  # a copy: it is a part of the node
                break


def _leave_to_the_host(
    model: Any, names: Sequence[str], caches: CacheOperators
) -> tuple[list[str | None], dict[str, HostWrite]]:
    """Return what the host writes into caches in place of the caches. names: of all outputs.

    Returns the names of the outputs that are left, and what takes the place of the others.
    """
    pairs = zip(names, model.get_results(), strict=True)
    found = {name: (result, caches.write_of(result.input_value(0))) for name, result in pairs}
    for result, write in found.values():
        if write:
            model.remove_result(result)
    left: list[str | None] = [name for name, (_, write) in found.items() if write is None]
    numbers: dict[Any, int] = {}

    def number(value: Value) -> int:
        if identity(value) not in numbers:
            numbers[identity(value)] = len(left)
            left.append(None)
            # It may be an input: OpenVINO 2026.4 then leaves the output as it was.
            model.add_results([op.result(op.identity(value))])
        return numbers[identity(value)]

    return left, {
        name: HostWrite(number(write.states), number(write.start))
        for name, (_, write) in found.items()
        if write
    }


def _lend_prefixes(model: Any, prefixes: Sequence[Prefix]) -> dict[str, tuple[list[int], str]]:
    """Put an input for each head in the place of what a chunk reads of a cache.

    A head's states are in one piece. Of a whole cache OpenVINO would convert all T positions for
    each chunk, where it calculates in 16 bits.
    """
    heads: list[list[Any]] = []
    for one in prefixes:
        count, slots, width = tuple(one.past.get_shape())[1:]
        shape = ov.PartialShape([ov.Dimension(0, slots), width])
        heads.append([op.parameter(shape, one.past.get_element_type()) for _ in range(count)])
        states = op.concat([op.unsqueeze(head, ints(0)) for head in heads[-1]], 0).output(0)
        for reader in one.states.get_target_inputs():
            reader.replace_source_output(states)
        model.add_parameters(heads[-1])
    read = {port.get_source_output() for node in model.get_ordered_ops() for port in node.inputs()}
    for one in prefixes:
        if one.past not in read:
            model.remove_parameter(one.past.get_node())
    return {
        one.past.get_any_name(): (
            list(map(model.get_parameter_index, lent)),
            one.start.get_any_name(),
        )
        for one, lent in zip(prefixes, heads, strict=True)
    }


def _lend_inputs(model: Any) -> None:
    """Let OpenVINO allocate no memory for caches: it does for inputs whose size it knows."""
    for parameter in model.get_parameters():
        if parameter.get_output_partial_shape(0).is_dynamic:
            continue
        shape = tuple(parameter.get_output_shape(0))
        if math.prod(shape) < _LENT:
            continue
        readers = parameter.output(0).get_target_inputs()
        parameter.set_partial_shape(ov.PartialShape([-1, *shape[1:]]))
        known = op.reshape(parameter, ints(*shape), False)
        for reader in readers:
            reader.replace_source_output(known.output(0))
    model.validate_nodes_and_infer_types()


def _describe(kind: Kind) -> tuple[str, list[int]]:
    shape, dtype = kind
    return str(dtype), list(shape)


def _kind(port: Any) -> Kind:
    return tuple(port.get_shape()), np.dtype(port.get_element_type().to_dtype())


def _put_weights(model: Any, weights: MappedWeights, spans: Mapping[str, WeightSpan]) -> None:
    """Put mapped files in the place of the inputs that are weights."""
    for parameter in model.get_parameters():
        if span := spans.get(parameter.output(0).get_any_name()):
            raw, kind = weights.bytes_of(span), parameter.get_element_type()
            tensor = ov.Tensor(raw, parameter.get_output_shape(0), kind)
            constant = ov.op.Constant(tensor, shared_memory=True)
            for target in parameter.output(0).get_target_inputs():
                target.replace_source_output(constant.output(0))
            model.remove_parameter(parameter)
