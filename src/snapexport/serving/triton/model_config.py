"""Makes config.pbtxt of the two models, by Triton's own schema."""

from collections.abc import Mapping
from typing import Any

from google.protobuf import text_format
from google.protobuf.json_format import ParseDict
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


def streaming(name: str, device: Device, parameters: Mapping[str, str], warmup_tokens: int) -> str:
    """The model that holds the build: decoupled, since a request may have many answers."""
    own = {
        "model_transaction_policy": {"decoupled": True},
        "model_warmup": [_warmup(warmup_tokens)],
    }
    return _text(_python_model(name, device, parameters) | own)


def unary(name: str, parameters: Mapping[str, str]) -> str:
    """The unary model, which forwards requests to the streaming model."""
    return _text(_python_model(name, "cpu", parameters))


def _text(config: Mapping[str, Any]) -> str:
    return str(text_format.MessageToString(ParseDict(config, schema.ModelConfig())))


def _python_model(name: str, device: Device, parameters: Mapping[str, str]) -> dict[str, Any]:
    gpus = [0] if device == "gpu" else []
    return {
        "name": name,
        "backend": "python",
        "max_batch_size": 1,
        "input": [{"name": given.name, "optional": True} | _shape(given) for given in INPUTS],
        "output": [{"name": output.name} | _shape(output) for output in OUTPUTS],
        "instance_group": [{"kind": f"KIND_{device.upper()}", "count": 1, "gpus": gpus}],
        "parameters": {key: {"string_value": value} for key, value in parameters.items()},
    }


def _shape(tensor: Tensor) -> dict[str, Any]:
    return {"data_type": f"TYPE_{tensor.dtype}", "dims": list(tensor.dims)}


def _warmup(tokens: int) -> dict[str, Any]:
    """A warm-up request of a prompt and two decoded tokens: prefill, compress and decode run.

    `serving.warm_up` runs the other decode graphs.
    """
    inputs = {"input_ids": {"data_type": "TYPE_INT32", "dims": [tokens], "zero_data": True}}
    for tensor in INPUTS:
        if tensor.name in WARMUP_FILES:
            inputs[tensor.name] = {**_shape(tensor), "input_data_file": tensor.name}
    return {"name": "prefill_and_decode", "batch_size": 1, "count": 1, "inputs": inputs}
