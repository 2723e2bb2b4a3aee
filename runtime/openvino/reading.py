"""Reads a graph of a build into OpenVINO: functions inlined, weights mapped, caches only read."""

import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from snapexport.contract.manifest import REBUILD, GraphEntry, TensorSpec
from snapexport.errors import UserError, first_line
from snapexport.files.protobuf import Message
from snapexport.files.untrusted import GRAPH_BYTES, read_bytes
from snapexport.runtime.openvino.cache_writes import CacheWrite, without_writes
from snapexport.runtime.openvino.inlining import inlined
from snapexport.runtime.openvino.operators import Operators
from snapexport.runtime.openvino.schema import Graph, Value, graph_of
from snapexport.runtime.openvino.top_sets import with_top_sets
from snapexport.runtime.openvino.weights import WeightSpan, mapped_bytes, split_weights

_PLACES = "Exception from", "Check '", "FrontEnd API failed", "Model wasn't fully", "--"
"""How lines of OpenVINO's messages begin that say where, and not why."""

Kind = tuple[tuple[int, ...], np.dtype[Any]]
"""A shape and a type."""


@dataclass(frozen=True)
class Read:
    """What is known of a graph after its model was compiled and let go of, with its weights.

    inputs: names of those that it reads. outputs: shapes and types by name. writes: outputs of the
    file that it has no more, and what takes the place of each. mapped: its weights' files, for as
    long as the model is there: OpenVINO holds addresses alone.
    """

    inputs: frozenset[str]
    outputs: Mapping[str, Kind]
    writes: Mapping[str, CacheWrite]
    mapped: list[NDArray[np.uint8]]


def read_graph(path: Path, entry: GraphEntry, *, dynamic: bool) -> tuple[Any, Read]:
    """OpenVINO's model, and what is known of it. Raises UserError.

    Also for a file that is not the graph of the manifest. dynamic: the device takes shapes that are
    computed.
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
    for extension in Operators(dynamic=dynamic).extensions():
        core.add_extension(extension)
    try:
        found = core.read_model(io.BytesIO(model.write()))
        mapped = _put_weights(found, path.parent, spans)
    except Exception as error:  # OpenVINO's exceptions share no narrower public base
        raise UserError(f"OpenVINO cannot read {path}: {_reason(error)}", REBUILD) from error
    inputs, outputs = _kinds(found.inputs), _kinds(found.outputs)
    # OpenVINO drops an input that nothing reads.
    read = [one for one in entry.inputs if one.name in inputs or one.name not in named]
    _check(path.name, "inputs", read, inputs)
    _check(path.name, "outputs", [one for one in entry.outputs if one.name not in writes], outputs)
    return found, Read(frozenset(inputs), outputs, writes, mapped)


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


def _put_weights(
    model: Any, folder: Path, spans: Mapping[str, WeightSpan]
) -> list[NDArray[np.uint8]]:
    """Put mapped files in the place of the inputs that are weights."""
    mapped: list[NDArray[np.uint8]] = []
    for parameter in model.get_parameters():
        if span := spans.get(parameter.output(0).get_any_name()):
            mapped.append(raw := mapped_bytes(folder, span))
            kind, shape = parameter.get_element_type(), parameter.get_output_shape(0)
            constant = ov.op.Constant(ov.Tensor(raw, shape, kind), shared_memory=True)
            for target in parameter.output(0).get_target_inputs():
                target.replace_source_output(constant.output(0))
            model.remove_parameter(parameter)
    return mapped


def _reason(error: Exception) -> str:
    """The line of OpenVINO's message that says why: the first ones are places in its source."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith(_PLACES)]
    return (told or lines or [type(error).__name__])[0]
