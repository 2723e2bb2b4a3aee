"""The FAKES of CUDA and TensorRT have nothing that the real bindings don't have.

Both bindings import without a driver: cuda-python by itself, TensorRT's over empty libraries
(bindings.py). Names, parameters and enum values are compared; nothing of a GPU is called.
"""

import ast
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import tensorrt, tensorrt_network, tensorrt_types
from tests.fakes.bindings import over_nothing
from tests.fakes.cuda import FakeCuda
from tests.plugins.loud import skip_loudly

MODULES = (tensorrt_types, tensorrt_network, tensorrt)
SOURCE = "".join(Path(str(module.__file__)).read_text() for module in MODULES)
"""Of the module, as if it were one file."""
OURS = ("NUMPY", "PLAN", "calls", "gpu", "planted", "tensors_of")
"""Public names that only the fake has."""
ENUMS = {
    name: {member.name: member.value for member in enum}
    for name, enum in (vars(tensorrt) | vars(tensorrt.ILogger)).items()
    if isinstance(enum, type) and issubclass(enum, IntEnum) and enum is not IntEnum
}
VALUES = """
import json, sys, tensorrt as trt
trt.Severity = trt.ILogger.Severity
print(json.dumps({
    enum: {name: int(getattr(getattr(trt, enum), name)) for name in names}
    for enum, names in json.loads(sys.argv[1]).items()
}))
"""
Members = dict[str, list[list[str]]]
"""By name, the parameters of each overload; an attribute has none."""


def members(node: ast.ClassDef | ast.Module) -> Members:
    found: Members = {}
    for name, parameters in _members(node):
        found.setdefault(name, []).append(parameters)
    return found


def _members(node: ast.ClassDef | ast.Module) -> Iterator[tuple[str, list[str]]]:
    for child in node.body:
        if isinstance(child, ast.FunctionDef):
            is_property = any(ast.unparse(one) == "property" for one in child.decorator_list)
            if child.name == "__init__":
                yield from ((name, []) for name in _assigned(child, ast.Attribute))
            yield child.name, [] if is_property else [arg.arg for arg in child.args.args]
        elif isinstance(child, ast.AnnAssign | ast.Assign):
            yield from ((name, []) for name in _assigned(child, ast.Name))
    # What Python implements for TensorRT to call stands in the class's own example alone.
    for name, parameters in re.findall(r"def (\w+)\((self, .*)\):", ast.get_docstring(node) or ""):
        yield name, parameters.split(", ")


def _assigned(node: ast.AST, kind: type[ast.Attribute | ast.Name]) -> Iterator[str]:
    for one in ast.walk(node):
        if isinstance(one, kind) and isinstance(one.ctx, ast.Store):
            yield ast.unparse(one).removeprefix("self.")


def classes(node: ast.ClassDef | ast.Module) -> dict[str, ast.ClassDef]:
    return {one.name: one for one in node.body if isinstance(one, ast.ClassDef)}


def drift(ours: ast.ClassDef | ast.Module, theirs: ast.ClassDef | ast.Module) -> Iterator[str]:
    """What the fake has and the bindings haven't."""
    known, real = members(theirs), classes(theirs)
    for name, overloads in members(ours).items():
        if name == "__init__":  # classes that only TensorRT makes have none
            overloads = [one for one in overloads if name in known and one != ["self"]]
        elif (name.startswith("_") and name != "__version__") or name in OURS or "." in name:
            continue
        yield from (
            f"{name}({', '.join(one)})" for one in overloads if one not in known.get(name, [])
        )
    for name, node in classes(ours).items():
        found = drift(node, real[name]) if name in real else iter([""])
        yield from (f"{name}.{one}" for one in found)


@pytest.fixture(scope="module")
def bindings(stubs: Path) -> ast.Module:
    return ast.parse((stubs / "tensorrt" / "__init__.pyi").read_text())


def test_the_fake_tensorrt_has_only_what_the_bindings_have(bindings: ast.Module) -> None:
    assert list(drift(ast.parse(SOURCE), bindings)) == []


def test_the_fake_tensorrts_enums_have_the_bindings_values(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", VALUES, json.dumps(ENUMS)],
        env=over_nothing(tmp_path / "empty"),
        capture_output=True,
        text=True,
    )
    assert json.loads(done.stdout or "{}") == ENUMS, done.stderr
    assert len(ENUMS) == 10


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ("def parse_from_file(self, model", "def parse_from_file(self, path", "parse_from_file"),
        ("def serialize(", "def serialise(", "ITimingCache.serialise"),
        ("class OnnxParser:", "class ONNXParser:", "ONNXParser"),
        ("    STRIP_PLAN = 18", "    STRIP_WEIGHTS = 18", "BuilderFlag.STRIP_WEIGHTS"),
        ("        VERBOSE = 4", "        LOUD = 4", "ILogger.Severity.LOUD"),
        ("self.engine_host_code_allowed", "self.host_code_allowed", "Runtime.host_code_allowed"),
        ("self, stream_handle: int", "self, stream: int", "IExecutionContext.execute_async_v3"),
        ("self, tensor_name: str, memory", "self, name: str, memory", "reallocate_output_async"),
        ("float32, float16", "fp32, float16", "fp32"),
    ],
)
def test_a_drift_is_found(bindings: ast.Module, before: str, after: str, found: str) -> None:
    assert before in SOURCE
    drifted = ast.parse(SOURCE.replace(before, after))
    assert any(found in one for one in drift(drifted, bindings))


@pytest.fixture(scope="module")
def cuda() -> Any:
    try:
        from cuda.bindings import runtime
    except ModuleNotFoundError:
        skip_loudly("cuda-python is missing: THE FAKE CUDA WAS NOT HELD AGAINST ITS BINDINGS")
    return runtime


def test_the_fake_cuda_has_only_what_the_bindings_have(cuda: Any) -> None:
    fakes = {name: value for name, value in vars(FakeCuda).items() if name.startswith("cuda")}
    assert len(fakes) > 20
    for name, fake in fakes.items():
        real = getattr(cuda, name)
        if inspect.isfunction(fake):
            _, *parameters = inspect.signature(fake).parameters
            assert parameters == list(inspect.signature(real).parameters), name
        elif isinstance(fake, type) and issubclass(fake, IntEnum):
            assert {one.name: one.value for one in fake} == {
                one.name: int(getattr(real, one.name)) for one in fake
            }
        elif isinstance(fake, type):
            public = {member for member in vars(fake) if not member.startswith("_")}
            assert public and public <= set(dir(real)), name
        else:
            assert fake == real, name


def test_cuda_without_a_driver_answers_like_the_fake(cuda: Any) -> None:
    error, count = cuda.cudaGetDeviceCount()
    if error == cuda.cudaError_t.cudaSuccess:
        pytest.skip("there is a driver here")
    fake = FakeCuda(driver=False)
    assert (error.name, count) == (fake.cudaGetDeviceCount()[0].name, None)
    assert (error, None) == cuda.cudaGetDevice() == fake.cudaGetDevice()
    assert isinstance(cuda.cudaDeviceProp().name, bytes)
    assert cuda.cudaGetErrorString(error)[1].startswith(b"CUDA driver version")
