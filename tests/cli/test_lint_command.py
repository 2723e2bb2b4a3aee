"""`snapexport lint`: its text, its JSON and its exit status."""

import json
from pathlib import Path

import pytest

from snapexport.builder import lint
from snapexport.cli.app import main
from snapexport.contract.build_directory import Build
from tests.builds import build


@pytest.fixture(scope="module")
def tensorrt_build(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Build:
    out = tmp_path_factory.mktemp("lint") / "b"
    return build(checkpoint, out, target="tensorrt", L_max=64, kv_budget=24, baseline=True)


def test_lint_finds_nothing_in_a_build_by_records(
    tensorrt_build: Build, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lint, "parser_for", lambda target: None)
    assert main(["lint", str(tensorrt_build.directory)]) == 0
    out = capsys.readouterr().out
    assert "found for TensorRT: nothing (checked: baseline-decode, " in out
    assert "no parser was asked: pip install 'snapexport[rtx]'" in out


def test_lint_groups_equal_findings(
    tiny_build: Build, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build for onnxruntime has operators that are its own."""
    monkeypatch.setattr(lint, "parser_for", lambda target: None)
    assert main(["lint", str(tiny_build.directory)]) == 0
    assert main(["lint", str(tiny_build.directory), "--target", "portable"]) == 1
    out = capsys.readouterr().out
    assert "and 14 more: any runtime of standard ONNX has no com.microsoft::FusedMatMul" in out
    assert out.count("com.microsoft::GroupQueryAttention") == 4


def test_lint_json_lists_the_findings(
    tiny_build: Build, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lint, "parser_for", lambda target: None)
    assert main(["lint", str(tiny_build.directory), "--target", "tensorrt-rtx", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["target"] == "tensorrt-rtx" and "decode" in report["graphs"]
    assert report["tensorrt_rtx"] is None
    for finding in report["findings"]:
        assert set(finding) == {"graph", "node", "operator", "message"}
    nodes = [one["node"] for one in report["findings"] if one["operator"] == "FusedMatMul"]
    assert len(nodes) == 15 * 6


def test_lint_refuses_a_folder_that_is_not_a_build_with_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lint", str(tmp_path)]) == 2
    assert "\n\nhint: " in capsys.readouterr().err
