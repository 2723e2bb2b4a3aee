"""Holds a written repository against what Triton, or our model in it, would make of it.

Triton's own parser finds unknown words. It does not find a name that is not the directory's, a
model.py that is missing (then loading hangs), a warm-up without its file or an input nobody reads.
"""

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as schema

from snapexport.contract.build_directory import Build
from snapexport.contract.errors import UserError, first_line
from snapexport.triton.interface import (
    BUILD,
    INPUTS,
    MODEL_FILE,
    OUTPUTS,
    UNARY_SUFFIX,
    VERSION,
    Tensor,
)
from snapexport.triton.model_config import WARMUP

CONFIG = "config.pbtxt"
STREAMING_PARAMETERS = frozenset({"build", "max_pending", "threads", "token_budget"})
UNARY_PARAMETERS = frozenset({"model", "max_requests"})


def require_sound(repository: Path) -> None:
    """Raise a UserError that tells every fault."""
    found = list(faults(repository))
    if found:
        raise UserError(
            f"{repository} would not serve:\n  " + "\n  ".join(found),
            "write it again with `snapexport triton BUILD --out DIR`, or mend these",
        )


def faults(repository: Path) -> Iterator[str]:
    """Each fault in a sentence that begins with the model's name."""
    models = [path for path in sorted(repository.iterdir()) if path.is_dir()]
    if not models:
        yield f"{repository}: holds no model"
    for model in models:
        for fault in _faults_of(model, {path.name for path in models}):
            yield f"{model.name}: {fault}"


def _faults_of(model: Path, names: set[str]) -> Iterator[str]:
    yield from _code(model / VERSION / MODEL_FILE)
    try:
        config = text_format.Parse((model / CONFIG).read_text("utf-8"), schema.ModelConfig())
    except FileNotFoundError:
        yield f"{CONFIG} is missing"
        return
    except (text_format.ParseError, UnicodeDecodeError) as error:
        yield f"{CONFIG} cannot be read: {first_line(error)}"
        return
    yield from _common(config, model.name)
    if config.model_transaction_policy.decoupled:
        yield from _parameters(config, STREAMING_PARAMETERS, {"build"})
        yield from _warmup(config, model / WARMUP)
        yield from _build(config, model / VERSION)
    else:
        yield from _parameters(config, UNARY_PARAMETERS, UNARY_PARAMETERS)
        yield from _unary(config, model.name, names)


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
    """Names that a module's own statements give to classes and imports."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield node.name
        if isinstance(node, ast.ImportFrom | ast.Import):
            yield from (alias.asname or alias.name for alias in node.names)


def _common(config: schema.ModelConfig, directory: str) -> Iterator[str]:
    if config.name not in ("", directory):
        yield f"{CONFIG} names it '{config.name}', unlike its directory"
    if config.backend != "python":
        yield f"backend is '{config.backend}', not 'python'"
    if config.max_batch_size != 1:
        yield f"max_batch_size is {config.max_batch_size}: its tensors have a batch dimension of 1"
    yield from _tensors("input", config.input, INPUTS)
    yield from _tensors("output", config.output, OUTPUTS)
    yield from (f"input '{one.name}' must be optional" for one in config.input if not one.optional)
    if not config.instance_group:
        yield "instance_group is missing: there would be an instance for each GPU"


def _tensors(
    kind: str, given: Sequence[schema.ModelInput], known: Sequence[Tensor]
) -> Iterator[str]:
    """Exactly those of the interface: a missing one would be refused, a further one unread."""
    expected = {tensor.name: (f"TYPE_{tensor.dtype}", tensor.dims) for tensor in known}
    names = [one.name for one in given]
    yield from (f"{kind} '{name}' is missing" for name in expected if name not in names)
    for one in given:
        if names.count(one.name) > 1:
            yield f"{kind} '{one.name}' stands there twice"
        elif one.name not in expected:
            yield f"{kind} '{one.name}' is none that the model knows"
        elif (schema.DataType.Name(one.data_type), tuple(one.dims)) != expected[one.name]:
            dtype, dims = expected[one.name]
            yield f"{kind} '{one.name}' must be {dtype} with dims {list(dims)}"


def _parameters(
    config: schema.ModelConfig, known: frozenset[str], needed: frozenset[str] | set[str]
) -> Iterator[str]:
    given = set(config.parameters)
    yield from (f"parameter '{name}' is unknown" for name in sorted(given - known))
    yield from (f"parameter '{name}' is missing" for name in sorted(needed - given))


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
        Build.open(version / (config.parameters["build"].string_value or BUILD))
    except UserError as error:
        yield f"the build cannot be opened: {error.message}"


def _unary(config: schema.ModelConfig, name: str, names: set[str]) -> Iterator[str]:
    asked = config.parameters["model"].string_value
    if asked not in names:
        yield f"it asks '{asked}', which is not in the repository"
    if not name.endswith(UNARY_SUFFIX):
        yield "it is not decoupled: model_transaction_policy { decoupled: true } is missing"
