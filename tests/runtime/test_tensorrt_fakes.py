"""The FAKES of CUDA and TensorRT have nothing that the real bindings haven't.

Both bindings import without a driver: cuda-python by itself, TensorRT's over empty libraries
(tests/engines/bindings.py). Names, parameters and enum values are compared; nothing is called.
"""

import ast
import inspect
import re
from enum import Enum
from typing import Any

import pytest

from tests.engines.bindings import make_stubs
from tests.plugins.loud import skip_loudly
from tests.runtime import fake_cuda, fake_tensorrt
from tests.runtime.fake_cuda import FakeCuda

CLASSES = [value for value in vars(fake_tensorrt).values() if inspect.isclass(value)]
FAKED = [c for c in CLASSES if c.__module__ == fake_tensorrt.__name__]
FUNCTIONS = [name for name, value in vars(FakeCuda).items() if inspect.isfunction(value)]
FUNCTIONS = [name for name in FUNCTIONS if name.startswith("cuda")]


@pytest.fixture(scope="module")
def real_cuda() -> Any:
    try:
        from cuda.bindings import runtime
    except ModuleNotFoundError:
        skip_loudly("cuda-python is missing: THE FAKE CUDA WAS NOT HELD AGAINST ITS BINDINGS")
    return runtime


@pytest.fixture(scope="module")
def real_tensorrt(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ast.ClassDef]:
    """The bindings' classes by name, as type stubs."""
    stubs = make_stubs(tmp_path_factory.mktemp("stubs"))
    return classes(ast.parse((stubs / "tensorrt" / "__init__.pyi").read_text()))


def classes(tree: ast.Module | ast.ClassDef) -> dict[str, ast.ClassDef]:
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def parameters(call: Any) -> list[str]:
    return [name for name in inspect.signature(call).parameters if name != "self"]


@pytest.mark.parametrize(
    "name", [n for n in FUNCTIONS if not inspect.isclass(getattr(FakeCuda, n))]
)
def test_cuda_functions_are_called_as_they_are(real_cuda: Any, name: str) -> None:
    assert parameters(getattr(FakeCuda, name)) == parameters(getattr(real_cuda, name))


@pytest.mark.parametrize("enum", fake_cuda.ENUMS)
def test_cuda_enums_have_these_values(real_cuda: Any, enum: type[Enum]) -> None:
    real = getattr(real_cuda, enum.__name__)
    for member in enum:
        assert int(getattr(real, member.name)) == member.value
    assert real_cuda.cudaStreamNonBlocking == FakeCuda.cudaStreamNonBlocking


def test_cuda_without_a_driver_answers_like_the_fake(real_cuda: Any) -> None:
    error, count = real_cuda.cudaGetDeviceCount()
    if error == real_cuda.cudaError_t.cudaSuccess:
        pytest.skip("there is a driver here")
    assert (count, error.name) == (None, "cudaErrorInsufficientDriver")
    assert isinstance(real_cuda.cudaDeviceProp().name, bytes)
    assert real_cuda.cudaGetErrorString(error)[1].startswith(b"CUDA driver version")


@pytest.mark.parametrize("faked", FAKED, ids=lambda faked: faked.__name__)
def test_tensorrt_classes_have_these_members(
    real_tensorrt: dict[str, ast.ClassDef], faked: type
) -> None:
    real = real_tensorrt[faked.__name__]
    for name, value in vars(faked).items():
        if name.startswith("_") and name != "__init__":
            continue
        if inspect.isclass(value):
            assert enum_members(value) <= declared(classes(real)[name])
        elif inspect.isfunction(value):
            check_method(real, name, parameters(value))
        elif isinstance(value, property):
            assert name in declared(real), f"{faked.__name__} has no {name}"
    if issubclass(faked, Enum):
        assert enum_members(faked) <= declared(real)


def check_method(real: ast.ClassDef, name: str, fake: list[str]) -> None:
    overloads = [
        [a.arg for a in node.args.args if a.arg != "self"]
        for node in real.body
        if isinstance(node, ast.FunctionDef) and node.name == name
    ]
    # What Python implements for TensorRT to call stands in the class's own example alone.
    examples = re.findall(rf"def {name}\(self, (.*)\)", ast.get_docstring(real) or "")
    overloads += [example.split(", ") for example in examples]
    if name != "__init__" or overloads:  # what only TensorRT makes has no constructor
        assert fake in overloads, f"{real.name}.{name}{overloads}"


def declared(real: ast.ClassDef) -> set[str]:
    """Enum members, attributes and properties."""
    targets = {
        n.target.id
        for n in real.body
        if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)
    }
    return targets | {n.name for n in real.body if isinstance(n, ast.FunctionDef)}


def enum_members(enum: type) -> set[str]:
    return {member.name for member in enum} if issubclass(enum, Enum) else set()


def test_a_drifted_fake_would_be_found(real_tensorrt: dict[str, ast.ClassDef]) -> None:
    with pytest.raises(AssertionError):
        check_method(real_tensorrt["IExecutionContext"], "execute_async_v3", ["stream"])
    with pytest.raises(AssertionError):
        check_method(real_tensorrt["Runtime"], "deserialize", ["serialized_engine"])
    assert "engine_host_code_allowed" in declared(real_tensorrt["Runtime"])
    assert "FP15" not in declared(real_tensorrt["DataType"])
