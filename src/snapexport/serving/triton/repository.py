"""Writes a model repository: a build, two models around it, a README and a Dockerfile.

NAME/config.pbtxt          NAME_unary/config.pbtxt
NAME/1/model.py            NAME_unary/1/model.py
NAME/1/build -> the build directory, or a copy of it
NAME/warmup/               README.md  Dockerfile  repository.json
"""

import importlib.resources
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any

from google.protobuf import text_format
from google.protobuf.json_format import ParseDict
from tritonclient.grpc import model_config_pb2 as schema

import snapexport
from snapexport.builder.staging import staged
from snapexport.contract.build_directory import Build
from snapexport.contract.manifest import Manifest
from snapexport.contract.memory import cache_bytes, spelled
from snapexport.contract.targets import capabilities
from snapexport.errors import UserError
from snapexport.files.copying import copy_file
from snapexport.runtime.requests.scheduler import Scheduler
from snapexport.serving.options import RepositoryOptions
from snapexport.serving.triton.interface import (
    BUILD,
    INPUTS,
    MODEL_FILE,
    OUTPUTS,
    VERSION,
    Device,
    Tensor,
)

RECORD = "repository.json"
"""Record of what was written, from which build. --overwrite replaces only directories with it."""

FILES = importlib.resources.files("snapexport.serving.triton") / "files"

CONFIG = "config.pbtxt"
WARMUP = "warmup"
"""The folder of a warm-up's values."""
WARMUP_FILES = {
    "max_tokens": (2).to_bytes(4, "little"),
    "ignore_eos": b"\x01",
}
"""Values of the warm-up's inputs in Triton's form. Its prompt is zeros, which Triton makes."""

_MODEL = """\
# The model's code is in the package snapexport.

from snapexport.serving.triton.models import {model} as TritonPythonModel

__all__ = ["TritonPythonModel"]
"""


def write_repository(options: RepositoryOptions) -> Path:
    """Write `options.out` atomically. Raises UserError."""
    build = Build.open(options.build)
    device = _device(options, build.manifest)
    build.require_run(command="triton", placed_on=device, threads=options.threads)
    Scheduler(build.manifest.batch, build.manifest.prefill_chunk, options.max_num_batched_tokens)
    _require_outside(options)
    with staged(options.out, options.overwrite, RECORD, "a model repository") as out:
        streaming = out / options.model_name
        longest = build.manifest.geometry.longest_prompt
        warmup_tokens = min(build.manifest.prefill_chunk + 1, longest)
        config = streaming_config(options.model_name, device, _parameters(options), warmup_tokens)
        _write_model(streaming, config, "StreamingModel")
        _place_build(build.directory, streaming / VERSION / BUILD, options.copy)
        _write_warmup(streaming / WARMUP)
        # The unary model may forward as many requests as fit.
        room = build.manifest.batch + options.max_pending
        parameters = {"model": options.model_name, "max_requests": str(room)}
        config = unary_config(options.unary_name, parameters)
        _write_model(out / options.unary_name, config, "UnaryModel")
        _write_template(out, "README.md", _readme_values(options, build.manifest, device))
        _write_template(out, "Dockerfile", _dockerfile_values(build.manifest))
        _write_record(out, options)
    return options.out


def _device(options: RepositoryOptions, manifest: Manifest) -> Device:
    if options.device:
        return options.device
    return "gpu" if capabilities(manifest.target).compiled and manifest.engines else "cpu"


def _require_outside(options: RepositoryOptions) -> None:
    """Raise UserError for --out inside the build: the copy would contain itself."""
    if options.out.resolve().is_relative_to(options.build.resolve()):
        raise UserError(
            f"--out {options.out} is inside the build {options.build}",
            "choose a directory outside of it",
        )


def _parameters(options: RepositoryOptions) -> dict[str, str]:
    given = {
        "build": BUILD,
        "max_pending": options.max_pending,
        "threads": options.threads,
        "token_budget": options.max_num_batched_tokens,
    }
    return {key: str(value) for key, value in given.items() if value is not None}


def _write_model(directory: Path, config: str, model: str) -> None:
    """model: the name of its class."""
    (directory / VERSION).mkdir(parents=True)
    (directory / CONFIG).write_text(config)
    (directory / VERSION / MODEL_FILE).write_text(_MODEL.format(model=model))


def _write_warmup(directory: Path) -> None:
    directory.mkdir()
    for name, content in WARMUP_FILES.items():
        (directory / name).write_bytes(content)


def _readme_values(
    options: RepositoryOptions, manifest: Manifest, device: Device
) -> dict[str, str]:
    cache = cache_bytes(manifest)
    return {
        "name": options.model_name,
        "unary": options.unary_name,
        "version": snapexport.__version__,
        "architecture": manifest.model.architecture,
        "target": manifest.target,
        "dtype": manifest.dtype,
        "longest_prompt": str(manifest.geometry.longest_prompt),
        "slots": str(manifest.batch),
        "cache": spelled(cache.decode),
        "full_cache": spelled(cache.full),
        "gpus": "--gpus all " if device == "gpu" else "",
    }


def _dockerfile_values(manifest: Manifest) -> dict[str, str]:
    """A plan runs on the TensorRT that built it."""
    versions = sorted({engine.version for engine in manifest.engines.values()})
    return {
        "requirement": "snapexport[cpu,tensorrt]" if versions else "snapexport[cpu]",
        "more": f" \\\n    tensorrt=={versions[-1]}" if versions else "",
    }


def _write_template(out: Path, name: str, values: dict[str, str]) -> None:
    text = Template((FILES / name).read_text()).substitute(values)
    (out / name).write_text(text)


def _write_record(out: Path, options: RepositoryOptions) -> None:
    record = {
        "written_by": f"snapexport {snapexport.__version__}",
        "models": [options.model_name, options.unary_name],
        "build": str(options.build.resolve()),
        "is_copy": options.copy,
    }
    (out / RECORD).write_text(json.dumps(record, indent=2) + "\n")


def _place_build(build: Path, place: Path, copy: bool) -> None:
    if copy:
        _require_plain(build)
        # By reflink where the file system can.
        shutil.copytree(build, place, copy_function=lambda one, to: copy_file(Path(one), Path(to)))
    else:
        place.symlink_to(build.resolve(), target_is_directory=True)


def _require_plain(build: Path) -> None:
    """Raise UserError for what would be copied without end, or from elsewhere."""
    for path in build.rglob("*"):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise UserError(f"{path} is neither a file nor a folder", "remove it from the build")


def streaming_config(
    name: str, device: Device, parameters: Mapping[str, str], warmup_tokens: int
) -> str:
    """The model that holds the build: decoupled, since a request may have many answers."""
    own = {
        "model_transaction_policy": {"decoupled": True},
        "model_warmup": [_warmup(warmup_tokens)],
    }
    return _text(_python_model(name, device, parameters) | own)


def unary_config(name: str, parameters: Mapping[str, str]) -> str:
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
