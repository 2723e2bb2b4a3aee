"""Reads a graph of a build into OpenVINO: functions inlined, weights mapped, caches only read."""

import io
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset14 as op

from snapexport.contract.manifest import REBUILD, GraphEntry, TensorSpec
from snapexport.errors import UserError, first_line
from snapexport.files.protobuf import Message
from snapexport.files.untrusted import GRAPH_BYTES, read_bytes
from snapexport.runtime.openvino.cache_writes import CacheWrite, without_writes
from snapexport.runtime.openvino.inlining import inlined
from snapexport.runtime.openvino.integer_products import IntegerProducts
from snapexport.runtime.openvino.operators import Operators
from snapexport.runtime.openvino.schema import Graph, Value, graph_of
from snapexport.runtime.openvino.top_sets import with_top_sets
from snapexport.runtime.openvino.values import ints
from snapexport.runtime.openvino.weights import MappedWeights, WeightSpan, split_weights

_PLACES = "Exception from", "Check '", "FrontEnd API failed", "Model wasn't fully", "--"
"""How lines of OpenVINO's messages begin that say where, and not why."""

_LENT = 1 << 10
"""Elements of an input from which on its memory matters."""

Kind = tuple[tuple[int, ...], np.dtype[Any]]
"""A shape and a type."""


@dataclass(frozen=True)
class Read:
    """What is known of a graph after its model was compiled and let go of, with its weights.

    inputs: names of those that it reads. outputs: shapes and types by name. writes: outputs of the
    file that it has no more, and what takes the place of each.
    """

    inputs: frozenset[str]
    outputs: Mapping[str, Kind]
    writes: Mapping[str, CacheWrite]


def read_graph(
    path: Path, entry: GraphEntry, weights: MappedWeights, *, dynamic: bool
) -> tuple[Any, Read]:
    """OpenVINO's model, and what is known of it. Raises UserError.

    Also for a file that is not the graph of the manifest. weights: have to last as long as what is
    compiled, since OpenVINO holds addresses alone. dynamic: the device takes computed shapes.
    """
    try:
        model = Message.read(read_bytes(path, GRAPH_BYTES, REBUILD))
        model = inlined(with_top_sets(model))
        named = {value.text(Value.NAME) for value in graph_of(model).messages(Graph.INPUT)}
        model, spans = split_weights(model, path.parent)
        model, writes = without_writes(model)
    except (ValueError, KeyError, IndexError, RecursionError) as error:
        raise UserError(
            f"{path} is no graph of this target: {first_line(error)}", REBUILD
        ) from None
    core = ov.Core()
    products = IntegerProducts(lambda name: weights.bytes_of(spans[name]))
    for extension in (*Operators(dynamic=dynamic).extensions(), products.extension()):
        core.add_extension(extension)
    try:
        found = core.read_model(io.BytesIO(model.write()))
        _put_weights(found, weights, spans)
    except Exception as error:  # OpenVINO's exceptions share no narrower public base
        raise UserError(f"OpenVINO cannot read {path}: {_reason(error)}", REBUILD) from error
    inputs, outputs = _kinds(found.inputs), _kinds(found.outputs)
    # OpenVINO drops an input that nothing reads.
    read = [one for one in entry.inputs if one.name in inputs or one.name not in named]
    _check(path.name, "inputs", read, inputs)
    _check(path.name, "outputs", [one for one in entry.outputs if one.name not in writes], outputs)
    if dynamic:
        _lend_inputs(found)
    return found, Read(frozenset(inputs), outputs, writes)


def _lend_inputs(model: Any) -> None:
    """Let OpenVINO allocate no memory for caches: it does for inputs whose size it knows."""
    for parameter in model.get_parameters():
        shape = tuple(parameter.get_output_shape(0))
        if math.prod(shape) < _LENT:
            continue
        readers = parameter.output(0).get_target_inputs()
        parameter.set_partial_shape(ov.PartialShape([-1, *shape[1:]]))
        known = op.reshape(parameter, ints(*shape), False)
        for reader in readers:
            reader.replace_source_output(known.output(0))
    model.validate_nodes_and_infer_types()


def _kinds(ports: Iterable[Any]) -> dict[str, Kind]:
    return {
        name: (tuple(port.get_shape()), np.dtype(port.get_element_type().to_dtype()))
        for port in ports
        for name in port.get_names()
    }


def _check(file: str, kind: str, promised: Iterable[TensorSpec], found: Mapping[str, Kind]) -> None:
    """Raise UserError for what the manifest says otherwise."""
    for spec in promised:
        expected = tuple(spec.shape), np.dtype(spec.dtype)
        if found.get(spec.name) != expected:
            raise UserError(
                f"{file} has {found.get(spec.name)} among its {kind} for '{spec.name}', "
                f"the manifest says {expected}",
                REBUILD,
            )


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


def _reason(error: Exception) -> str:
    """The line of OpenVINO's message that says why: the first ones are places in its source."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith(_PLACES)]
    return (told or lines or [type(error).__name__])[0]
