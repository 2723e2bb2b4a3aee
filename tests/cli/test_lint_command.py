"""`snapexport lint`: its text, its JSON and its exit status."""

import json
from pathlib import Path

import pytest

from snapexport.build import build
from snapexport.cli.app import main
from snapexport.contract.build_directory import Build


@pytest.fixture(scope="module")
def tensorrt_build(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Build:
    out = tmp_path_factory.mktemp("lint") / "b"
    return build(checkpoint, out, target="tensorrt", L_max=64, kv_budget=24, baseline=True)


def test_lint_finds_nothing_in_a_build(
    tensorrt_build: Build, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lint", str(tensorrt_build.directory), "--for", "tensorrt"]) == 0
    assert "found for TensorRT 11.0: nothing (checked: baseline-decode, " in (
        capsys.readouterr().out
    )


def test_lint_groups_equal_findings(tiny_build: Build, capsys: pytest.CaptureFixture[str]) -> None:
    """A build for onnxruntime has operators that are its own."""
    assert main(["lint", str(tiny_build.directory), "--for", "tensorrt=10.15"]) == 1
    out = capsys.readouterr().out
    assert "and 14 more: the parser of TensorRT 10.15 has no com.microsoft::FusedMatMul" in out
    assert "way out: build with --target tensorrt" in out
    assert out.count("com.microsoft::GroupQueryAttention") == 4


def test_lint_json_lists_the_findings(
    tiny_build: Build, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lint", str(tiny_build.directory), "--for", "tensorrt", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["for"] == "tensorrt 11.0" and "decode" in report["graphs"]
    for finding in report["findings"]:
        assert set(finding) == {
            *("graph", "node", "operator", "rule", "message", "way_out", "source")
        }
    nodes = [one["node"] for one in report["findings"] if one["operator"] == "FusedMatMul"]
    assert len(nodes) == 15 * 6


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("openvino", "--for 'openvino' is not known"),
        ("tensorrt=", "names no version"),
        ("tensorrt=8", "TensorRT 8 is too old"),
    ],
)
def test_lint_refuses_bad_input_with_status_2(
    tensorrt_build: Build, capsys: pytest.CaptureFixture[str], target: str, message: str
) -> None:
    assert main(["lint", str(tensorrt_build.directory), "--for", target]) == 2
    error = capsys.readouterr().err
    assert message in error and "\n\nhint: " in error
