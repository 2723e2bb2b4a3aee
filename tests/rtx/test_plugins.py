"""The real parser takes our plugins, from the library that CMake builds.

TensorRT for RTX runs no plugins: its process ends after it has created one. So the evidence is its
log up to there. The headers are the tests' own (tests/plugins/stub), whose virtual functions have
the real order.
"""

import shutil
import subprocess
from pathlib import Path

import onnx
import pytest

from snapexport.contract.build_directory import Build
from snapexport.plugins import binding
from tests.builds import build
from tests.plugins.loud import skip_loudly
from tests.rtx.conftest import SMALL
from tests.rtx.library import ask

STUB = Path(__file__).parents[1] / "plugins/stub"


@pytest.fixture(scope="module")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not shutil.which("cmake") or not shutil.which("nvcc"):
        skip_loudly("no cmake or no nvcc: THE REAL PARSER WAS NOT ASKED TO TAKE OUR PLUGINS")
    folder = tmp_path_factory.mktemp("plugins")
    configure = ["cmake", "-S", str(binding.HOME), "-B", str(folder)]
    options = [f"-DSNAPEXPORT_TENSORRT_INCLUDE_DIR={STUB}", "-DCMAKE_CUDA_ARCHITECTURES=89-real"]
    make = ["cmake", "--build", str(folder), "--target", "snapexport_loadable"]
    for command in (configure + options, make):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder / "libsnapexport_loadable.so"


@pytest.fixture(scope="module")
def made(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Build:
    out = tmp_path_factory.mktemp("build") / "b"
    return build(checkpoint, out, target="tensorrt", dtype="fp16", **SMALL)


def only(made: Build, operator: str, path: Path) -> Path:
    """The compress graph, cut down to the first call of `operator`."""
    model = onnx.load(made.graph("compress"))
    call = next(node for node in model.graph.node if node.op_type == operator)
    known = {value.name: value for value in (*model.graph.input, *model.graph.output)}
    given, outputs = ([known[name] for name in names] for names in (call.input, call.output))
    model.graph.CopyFrom(onnx.helper.make_graph([call], "one", given, outputs))
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("operator", ["SnapKVSelect", "SnapStreamGather"])
def test_the_parser_creates_our_plugin_for_its_call(
    operator: str, made: Build, plugins: Path, tmp_path: Path
) -> None:
    answer = ask(only(made, operator, tmp_path / "one.onnx"), (), plugins)
    assert ("Successfully created plugin", operator) in answer.told, answer.errors


def test_parser_takes_function_bodies_without_the_plugin_library(made: Build) -> None:
    answer = ask(made.graph("compress"))
    assert answer.accepted and not answer.told[0][0].startswith("Successfully")
