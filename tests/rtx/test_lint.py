"""`snapexport lint` reports what the real parser refuses, by node, and nothing of our graphs."""

import json
import shutil
from pathlib import Path

import onnx
import pytest
from onnx.helper import make_node

from snapexport.cli.app import main
from snapexport.contract.build_directory import Build
from tests.builds import build
from tests.contract.test_build_directory import rewrite_graph

FAULTY = (
    make_node("Unique", ["position_ids"], ["u"], name="first unique"),
    make_node(
        "AveragePool",
        ["past_key_values.0.key"],
        ["p"],
        name="dilated pool",
        kernel_shape=[1, 2],
        dilations=[1, 2],
    ),
)


@pytest.fixture(scope="module")
def made(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Build:
    out = tmp_path_factory.mktemp("lint") / "b"
    return build(checkpoint, out, target="tensorrt", L_max=64, kv_budget=24)


@pytest.mark.parametrize("target", ["tensorrt", "tensorrt-rtx"])
def test_parser_refuses_no_node_of_a_build(
    made: Build, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lint", str(made.directory), "--target", target]) == 0
    assert "the parser of TensorRT for RTX 1." in capsys.readouterr().out


def plant(model: onnx.ModelProto) -> None:
    model.graph.node.extend(FAULTY)


def test_lint_names_each_node_that_the_parser_refuses(
    made: Build, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = Path(shutil.copytree(made.directory, tmp_path / "copy"))
    rewrite_graph(copy, "decode.onnx", plant)
    assert main(["lint", str(copy), "--json"]) == 1
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert [finding["node"] for finding in findings] == ["first unique", "dilated pool"]
    assert all(finding["message"].startswith("tensorrt_rtx 1.") for finding in findings)
