"""Checks a config.pbtxt against the fields and parameters of our models.

An unknown field or parameter is a fault: Triton would accept it, and answer differently.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tritonclient.grpc import model_config_pb2 as schema

from snapexport.serving.triton.interface import (
    INPUTS,
    OUTPUTS,
    STREAMING_PARAMETERS,
    TRITONS_PARAMETERS,
    UNARY_PARAMETERS,
    UNARY_SUFFIX,
    Tensor,
)

CONFIG = "config.pbtxt"

KIND_CPU = schema.ModelInstanceGroup.KIND_CPU
KIND_GPU = schema.ModelInstanceGroup.KIND_GPU

FIELDS = frozenset(
    {"name", "backend", "max_batch_size", "input", "output", "parameters", "instance_group"}
)
STREAMING_FIELDS = FIELDS | {"model_transaction_policy", "model_warmup"}
TENSOR_FIELDS = frozenset({"name", "data_type", "dims", "optional"})
GROUP_FIELDS = frozenset({"name", "kind", "count", "gpus"})

LEAST = {"max_pending": 0, "threads": 1, "token_budget": 1, "max_requests": 1}
"""Parameters that are whole numbers."""


def common_faults(config: schema.ModelConfig, directory: str) -> Iterator[str]:
    """Faults of either model's config."""
    if config.name not in ("", directory):
        yield f"{CONFIG} names it '{config.name}', unlike its directory"
    if config.backend != "python":
        yield f"backend is '{config.backend}', not 'python'"
    if config.max_batch_size != 1:
        yield f"max_batch_size is {config.max_batch_size}: its tensors have a batch dimension of 1"
    yield from _tensors("input", config.input, INPUTS)
    yield from _tensors("output", config.output, OUTPUTS)
    yield from (f"input '{one.name}' must be optional" for one in config.input if not one.optional)


def streaming_faults(config: schema.ModelConfig) -> Iterator[str]:
    """Faults of the model that holds the build."""
    yield from _unknown(config, STREAMING_FIELDS)
    yield from _parameters(config, STREAMING_PARAMETERS, {"build", "max_pending"})
    yield from _group(config, {KIND_CPU: [], KIND_GPU: [0]})
    on_gpu = any(group.kind == KIND_GPU for group in config.instance_group)
    if on_gpu and "threads" in config.parameters:
        yield "parameter 'threads' is for the CPU, and the model runs on a GPU"


def unary_faults(config: schema.ModelConfig, name: str, streaming: set[str]) -> Iterator[str]:
    """Faults of the model that answers once. streaming: names of the streaming models."""
    yield from _unknown(config, FIELDS)
    yield from _parameters(config, UNARY_PARAMETERS, UNARY_PARAMETERS)
    yield from _group(config, {KIND_CPU: []})
    target = config.parameters["model"].string_value if "model" in config.parameters else ""
    if target not in streaming:
        yield f"it asks '{target}', which is no streaming model of the repository"
    if not name.endswith(UNARY_SUFFIX):
        yield "it is not decoupled: model_transaction_policy { decoupled: true } is missing"


def _unknown(message: Any, known: Iterable[str], where: str = "") -> Iterator[str]:
    for field, _ in message.ListFields():
        if field.name not in known:
            yield f"{where}field '{field.name}' is none that the model is served with"


def _tensors(
    kind: str, given: Sequence[schema.ModelInput], known: Sequence[Tensor]
) -> Iterator[str]:
    """Inputs and outputs must be exactly those of the interface."""
    expected = {tensor.name: (f"TYPE_{tensor.dtype}", tensor.dims) for tensor in known}
    names = [one.name for one in given]
    yield from (f"{kind} '{name}' is missing" for name in expected if name not in names)
    for one in given:
        yield from _unknown(one, TENSOR_FIELDS, f"{kind} '{one.name}': ")
        if names.count(one.name) > 1:
            yield f"{kind} '{one.name}' stands there twice"
        elif one.name not in expected:
            yield f"{kind} '{one.name}' is none that the model knows"
        elif (schema.DataType.Name(one.data_type), tuple(one.dims)) != expected[one.name]:
            dtype, dims = expected[one.name]
            yield f"{kind} '{one.name}' must be {dtype} with dims {list(dims)}"


def _parameters(
    config: schema.ModelConfig, known: frozenset[str], needed: Iterable[str]
) -> Iterator[str]:
    given = {name: one.string_value for name, one in config.parameters.items()}
    unknown = given.keys() - known - TRITONS_PARAMETERS
    yield from (f"parameter '{name}' is unknown" for name in sorted(unknown))
    yield from (f"parameter '{name}' is missing" for name in sorted(set(needed) - given.keys()))
    for name in sorted(given.keys() & known & LEAST.keys()):
        if not given[name].isdecimal() or int(given[name]) < LEAST[name]:
            yield f"parameter '{name}' is '{given[name]}', no whole number from {LEAST[name]} on"


def _group(config: schema.ModelConfig, gpus: Mapping[int, list[int]]) -> Iterator[str]:
    """There must be one instance. gpus: kind -> its GPUs."""
    if not config.instance_group:
        yield "instance_group is missing: there would be an instance for each GPU"
        return
    if len(config.instance_group) > 1:
        yield f"instance_group stands there {len(config.instance_group)} times, for one instance"
    for group in config.instance_group:
        yield from _unknown(group, GROUP_FIELDS, "instance_group: ")
        kind = schema.ModelInstanceGroup.Kind.Name(group.kind)
        if group.count != 1:
            yield f"instance_group: count is {group.count}, not 1: each holds the weights"
        if group.kind not in gpus:
            yield f"instance_group: {kind} is none that the model runs on"
        elif list(group.gpus) != gpus[group.kind]:
            yield f"instance_group: {kind} must have gpus {gpus[group.kind]}"
