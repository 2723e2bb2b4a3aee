"""Libraries that the runtime loads, each checked in a new process."""

import ast
import importlib.util
from pathlib import Path

import pytest

from snapexport.runtime.engine.open_executor import MAKERS
from tests.oracle import cases
from tests.oracle.cases import Case

from .processes import run_python

HEAVY = "torch transformers onnx onnx_ir onnx_graphsurgeon polygraphy tensorrt cuda"


def loaded(script: str, heavy: str) -> list[str]:
    """The heavy modules that the script has loaded."""
    check = f"import sys; print(*[m for m in {heavy.split()!r} if m in sys.modules])"
    return run_python(f"{script}\n{check}").stdout.split()


def test_importing_the_runtime_loads_no_backend_library() -> None:
    assert loaded("import snapexport.runtime.requests.llm", f"onnxruntime {HEAVY}") == []


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_running_a_build_loads_no_export_library(backend: str) -> None:
    directory = str(cases.built(Case(target="portable")).directory)
    script = f"""
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.request import SamplingParams
llm = LLM({directory!r}, threads=1, backend={backend!r})
llm.generate([[1, 2, 3]], SamplingParams(max_tokens=2))"""
    assert loaded(script, f"onnxruntime openvino {HEAVY}") == [backend]


def test_without_its_library_the_error_names_the_extra() -> None:
    directory = str(cases.built(Case(target="portable")).directory)
    script = f"""
import sys
sys.modules["onnxruntime"] = sys.modules["openvino"] = None
from snapexport.errors import UserError
from snapexport.runtime.requests.llm import LLM
for backend, extra in ((None, "cpu"), ("onnxruntime-cuda", "gpu"), ("openvino", "openvino")):
    try:
        LLM({directory!r}, backend=backend)
    except UserError as error:
        assert error.hint == f"pip install 'snapexport[{{extra}}]'", error.hint
    else:
        raise AssertionError("nothing was refused")"""
    assert loaded(script, HEAVY) == []


@pytest.mark.parametrize("name", MAKERS)
def test_each_backend_of_the_table_is_there(name: str) -> None:
    module, function = MAKERS[name]
    spec = importlib.util.find_spec(module)
    assert spec and spec.origin
    tree = ast.parse(Path(spec.origin).read_text())
    assert function in {getattr(node, "name", "") for node in tree.body}
