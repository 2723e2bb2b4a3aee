"""Makes config.pbtxt of the two models, by Triton's own schema."""

from collections.abc import Mapping
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as schema

from snapexport.serving.triton.interface import INPUTS, OUTPUTS, Device, Tensor

CONFIG = "config.pbtxt"
WARMUP = "warmup"
"""The folder of a warm-up's values."""
WARMUP_FILES = {
    "max_tokens": (2).to_bytes(4, "little"),
    "ignore_eos": b"\x01",
}
"""Values of the warm-up's inputs in Triton's form. Its prompt is zeros, which Triton makes."""

_KINDS = {
    "cpu": schema.ModelInstanceGroup.KIND_CPU,
    "gpu": schema.ModelInstanceGroup.KIND_GPU,
}


def streaming(
    name: str, device: Device, parameters: Mapping[str, str], warmup_tokens: int
) -> schema.ModelConfig:
    """The model that holds the build: decoupled, so that a request may have many answers."""
    config = _python_model(name, parameters)
    config.model_transaction_policy.decoupled = True
    config.instance_group.add(kind=_KINDS[device], count=1, gpus=[0] if device == "gpu" else [])
    config.model_warmup.append(_warmup(warmup_tokens))
    return config


def unary(name: str, parameters: Mapping[str, str]) -> schema.ModelConfig:
    """The unary model, which forwards requests to the streaming model."""
    config = _python_model(name, parameters)
    config.instance_group.add(kind=_KINDS["cpu"], count=1)
    return config


def to_text(config: schema.ModelConfig) -> str:
    """The text of a config.pbtxt."""
    return str(text_format.MessageToString(config))


def _python_model(name: str, parameters: Mapping[str, str]) -> schema.ModelConfig:
    config = schema.ModelConfig(name=name, backend="python", max_batch_size=1)
    for tensor in INPUTS:
        config.input.add(**_described(tensor), optional=True)
    for tensor in OUTPUTS:
        config.output.add(**_described(tensor))
    for key, value in parameters.items():
        config.parameters[key].string_value = value
    return config


def _described(tensor: Tensor) -> dict[str, Any]:
    data_type = schema.DataType.Value(f"TYPE_{tensor.dtype}")
    return {"name": tensor.name, "data_type": data_type, "dims": tensor.dims}


def _warmup(tokens: int) -> schema.ModelWarmup:
    """A warm-up request of a prompt and two decoded tokens: prefill, compress and decode run.

    `serving.warm_up` runs the other decode graphs.
    """
    warmup = schema.ModelWarmup(name="prefill_and_decode", batch_size=1, count=1)
    prompt = warmup.inputs["input_ids"]
    prompt.data_type, prompt.zero_data = schema.TYPE_INT32, True
    prompt.dims.append(tokens)
    for tensor in INPUTS:
        if tensor.name in WARMUP_FILES:
            value = warmup.inputs[tensor.name]
            value.data_type = schema.DataType.Value(f"TYPE_{tensor.dtype}")
            value.dims.extend(tensor.dims)
            value.input_data_file = tensor.name
    return warmup
