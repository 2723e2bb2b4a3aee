"""Checks a model repository: rejects mistakes that Triton silently accepts.

Triton's own parser finds unknown fields. It does not find a name other than the directory's, a
missing model.py (then loading hangs), a warm-up without its file, or an input that no model reads.
"""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as schema

from snapexport.contract.build_directory import Build
from snapexport.contract.errors import UserError, first_line
from snapexport.serving.triton.config_checks import (
    CONFIG,
    common_faults,
    streaming_faults,
    unary_faults,
)
from snapexport.serving.triton.interface import BUILD, INPUTS, MODEL_FILE, VERSION
from snapexport.serving.triton.model_config import WARMUP

Configs = Mapping[str, schema.ModelConfig | str]
"""Model name -> its config.pbtxt, or the reason why it cannot be read."""


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
    configs = {model.name: _config(model / CONFIG) for model in models}
    for model in models:
        for fault in _faults_of(model, configs):
            yield f"{model.name}: {fault}"


def _config(file: Path) -> schema.ModelConfig | str:
    try:
        return text_format.Parse(file.read_text("utf-8"), schema.ModelConfig())
    except FileNotFoundError:
        return f"{CONFIG} is missing"
    except (text_format.ParseError, UnicodeDecodeError) as error:
        return f"{CONFIG} cannot be read: {first_line(error)}"


def _faults_of(model: Path, configs: Configs) -> Iterator[str]:
    yield from _versions(model)
    yield from _code(model / VERSION / MODEL_FILE)
    config = configs[model.name]
    if isinstance(config, str):
        yield config
        return
    yield from common_faults(config, model.name)
    if _is_streaming(config):
        yield from streaming_faults(config)
        yield from _warmup(config, model / WARMUP)
        yield from _build(config, model / VERSION)
    else:
        streaming = {name for name, one in configs.items() if _is_streaming(one)}
        yield from unary_faults(config, model.name, streaming)


def _is_streaming(config: schema.ModelConfig | str) -> bool:
    return not isinstance(config, str) and bool(config.model_transaction_policy.decoupled)


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
        tree = ast.parse(file.read_text("utf-8"))
    except (SyntaxError, UnicodeDecodeError, ValueError) as error:
        yield f"{VERSION}/{MODEL_FILE} is no Python: {first_line(error)}"
        return
    if "TritonPythonModel" not in set(_bound(tree)):
        yield f"{VERSION}/{MODEL_FILE} defines no TritonPythonModel"


def _bound(tree: ast.Module) -> Iterator[str]:
    """Names that a module's own statements bind to classes and imports."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield node.name
        if isinstance(node, ast.ImportFrom | ast.Import):
            yield from (alias.asname or alias.name for alias in node.names)


def _warmup(config: schema.ModelConfig, directory: Path) -> Iterator[str]:
    if not config.model_warmup:
        yield "there is no model_warmup: it would be ready before its graphs have run"
    names = {tensor.name for tensor in INPUTS}
    for warmup in config.model_warmup:
        for name, value in warmup.inputs.items():
            if name not in names:
                yield f"warm-up input '{name}' is none that the model knows"
            elif value.input_data_file and not (directory / value.input_data_file).is_file():
                yield f"{WARMUP}/{value.input_data_file} is missing"


def _build(config: schema.ModelConfig, version: Path) -> Iterator[str]:
    try:
        build = Build.open(version / (config.parameters["build"].string_value or BUILD))
    except UserError as error:
        yield f"the build cannot be opened: {error.message}"
        return
    on_gpu = any(
        group.kind == schema.ModelInstanceGroup.KIND_GPU for group in config.instance_group
    )
    if on_gpu and not build.manifest.engines:
        yield "KIND_GPU needs TensorRT engines, and the build has none"
