"""Checks a model repository: rejects mistakes that Triton silently accepts.

A config.pbtxt has to be the one that `model_config` makes, but for parameters and warm-ups.
Triton's own parser does not find a name other than the directory's, a missing model.py (then
loading hangs), a warm-up without its file, or an input that no model reads.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from google.protobuf.json_format import MessageToDict
from tritonclient.grpc import model_config_pb2 as schema

from snapexport.contract.build_directory import Build
from snapexport.errors import UserError, first_line
from snapexport.serving.triton import model_config
from snapexport.serving.triton.backend.settings import (
    StreamingParameters,
    UnaryParameters,
    read_parameters,
)
from snapexport.serving.triton.interface import INPUTS, MODEL_FILE, UNARY_SUFFIX, VERSION
from snapexport.serving.triton.model_config import CONFIG, WARMUP

Config = Mapping[str, Any]
"""A config.pbtxt as JSON's objects."""

REASONS = {
    "backend": "the models are written in Python",
    "max_batch_size": "tensors have a batch dimension of 1",
    "instance_group": "there is one instance, since each holds the weights",
    "model_transaction_policy": "a model that streams has to be decoupled",
}
"""Reasons for the values of fields."""


def require_sound(repository: Path) -> None:
    """Raise UserError, with every fault, for a faulty repository."""
    found = list(faults(repository))
    if found:
        raise UserError(
            f"{repository} would not serve:\n  " + "\n  ".join(found),
            "write it again with `snapexport triton BUILD --out DIR`, or correct these",
        )


def faults(repository: Path) -> Iterator[str]:
    """Each fault in a sentence that begins with the model's name."""
    models = [path for path in sorted(repository.iterdir()) if path.is_dir()]
    if not models:
        yield f"{repository}: holds no model"
    for model in models:
        for fault in _faults_of(model):
            yield f"{model.name}: {fault}"


def _faults_of(model: Path) -> Iterator[str]:
    yield from _versions(model)
    yield from _code(model / VERSION / MODEL_FILE)
    try:
        config = _read(model)
        yield from (_unary if _is_unary(model, config) else _streaming)(model, config)
    except UserError as error:
        yield error.message


def _read(model: Path) -> Config:
    """The model's config, with what may have any value made equal. Raises UserError."""
    hint = "write the repository again"
    try:
        text = (model / CONFIG).read_text("utf-8")
        config = text_format.Parse(text, schema.ModelConfig())
    except FileNotFoundError:
        raise UserError(f"{CONFIG} is missing", hint) from None
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise UserError(f"{CONFIG} cannot be read: {first_line(error)}", hint) from None
    config.name = config.name or model.name
    for group in config.instance_group:
        group.ClearField("name")
    return _as_dict(config)


def _as_dict(config: schema.ModelConfig) -> Config:
    fields: Config = MessageToDict(config, preserving_proto_field_name=True)
    return fields


def _is_unary(model: Path, config: Config) -> bool:
    return model.name.endswith(UNARY_SUFFIX) and "model_transaction_policy" not in config


def _streaming(model: Path, config: Config) -> Iterator[str]:
    """Faults of the model that holds the build."""
    groups = config.get("instance_group", [])
    on_gpu = any(group.get("kind") == "KIND_GPU" for group in groups)
    made = model_config.streaming(model.name, "gpu" if on_gpu else "cpu", {}, warmup_tokens=1)
    yield from _differences(config, _as_dict(made))
    yield from _warmups(config, model / WARMUP)
    parameters = read_parameters(StreamingParameters, config)
    if on_gpu and parameters.threads is not None:
        yield "parameter 'threads' is for the CPU, and the model runs on a GPU"
    try:
        build = Build.open(model / VERSION / parameters.build)
    except UserError as error:
        yield f"the build cannot be opened: {error.message}"
        return
    if on_gpu and not build.manifest.engines:
        yield "KIND_GPU needs TensorRT engines, and the build has none"


def _unary(model: Path, config: Config) -> Iterator[str]:
    """Faults of the model that answers once."""
    made = model_config.unary(model.name, {})
    yield from _differences(config, _as_dict(made))
    asked = read_parameters(UnaryParameters, config).model
    if not _streams(model.parent / asked):
        yield f"it asks '{asked}', which is no streaming model of the repository"


def _streams(model: Path) -> bool:
    with suppress(UserError):
        return not _is_unary(model, _read(model))
    return False


def _differences(given: Config, made: Config) -> Iterator[str]:
    """Where a config differs from the one that the writer makes."""
    found, expected = _entries(given), _entries(made)
    for name in {**expected, **found}:
        reason = f": {REASONS[name]}" if name in REASONS else ""
        if name not in found:
            yield f"{name} is missing{reason}"
        elif name not in expected:
            yield f"{name} is none that the model is served with"
        elif found[name] != expected[name]:
            yield f"{name} is {found[name]}, not {expected[name]}{reason}"


def _entries(config: Config) -> dict[str, Any]:
    """Name -> value of all fields but parameters and warm-ups; inputs and outputs one by one."""
    entries: dict[str, Any] = {}
    for field, values in config.items():
        if field in ("parameters", "model_warmup"):
            continue
        for value in values if isinstance(values, list) else [values]:
            name = f"{field} '{value.get('name')}'" if field in ("input", "output") else field
            while name in entries:
                name = f"a second {name}"
            entries[name] = value
    return entries


def _versions(model: Path) -> Iterator[str]:
    """Triton would serve the highest."""
    for path in sorted(model.iterdir()):
        if path.is_dir() and path.name.isdecimal() and path.name != VERSION:
            yield f"{path.name} is another version: only {VERSION} may be there"


def _code(file: Path) -> Iterator[str]:
    if not file.is_file():
        yield f"{VERSION}/{MODEL_FILE} is missing: the server would hang"
        return
    try:
        names = compile(file.read_text("utf-8"), file, "exec").co_names
    except (SyntaxError, UnicodeDecodeError, ValueError) as error:
        yield f"{VERSION}/{MODEL_FILE} is no Python: {first_line(error)}"
        return
    if "TritonPythonModel" not in names:
        yield f"{VERSION}/{MODEL_FILE} defines no TritonPythonModel"


def _warmups(config: Config, directory: Path) -> Iterator[str]:
    if "model_warmup" not in config:
        yield "there is no model_warmup: it would be ready before its graphs have run"
    for warmup in config.get("model_warmup", []):
        for name, value in warmup.get("inputs", {}).items():
            file = value.get("input_data_file")
            if name not in {tensor.name for tensor in INPUTS}:
                yield f"warm-up input '{name}' is none that the model knows"
            elif file and not (directory / file).is_file():
                yield f"{WARMUP}/{file} is missing"
