"""`snapexport engine` over a FAKE TensorRT: its output and its refusals."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from snapexport.cli.app import main
from snapexport.contract.build_directory import Build
from tests.builder.engines.engine_builds import GRAPHS, NAME, entry_of, refusal


def test_engine_estimate_needs_neither_tensorrt_nor_gpu(
    own_build: Build, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["engine", str(own_build.directory), "--estimate", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report["graphs"]) == GRAPHS
    assert report["disk_bytes"] == 0  # the engines share the build's weights
    assert report["host_bytes"] == max(one["host_bytes"] for one in report["graphs"].values())
    assert main(["engine", str(own_build.directory), "--estimate", "--graphs", "decode"]) == 0
    out = capsys.readouterr().out
    assert "decode" in out and "prefill" not in out and "running needs at least" in out


def test_engine_command_builds_and_prints_a_summary(
    fake_tensorrt: Any, own_build: Build, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["engine", str(own_build.directory), "--graphs", "decode", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == {"name": NAME} | entry_of(own_build).model_dump()
    assert "--dtype bf16 or fp16" in err and "of memory and" in err
    assert main(["engine", str(own_build.directory), "--graphs", "compress"]) == 0
    out = capsys.readouterr().out
    assert f"engines/{NAME}: TensorRT 11.4" in out and "compress: 19.53 KiB" in out
    assert "optimization level 3" in out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--workspace", "8XB"], "argument --workspace: '8XB' is not a size"),
        (["--graphs", "encode"], "the build has no graph 'encode'"),
        (["--hardware-compat", "hopper"], "'hopper' is not known"),
        (["--optimization-level", "9"], "--optimization-level 9"),
    ],
)
def test_engine_command_refuses_wrong_flags(
    own_build: Build, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    assert main(["engine", str(own_build.directory), *flags]) == 2
    error = capsys.readouterr().err
    assert message in error and "\n\nhint: " in error
    assert not (own_build.directory / "engines").exists()


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("raise ModuleNotFoundError('no', name='tensorrt')", "package 'tensorrt' is not installed"),
        (
            "raise ImportError('libnvinfer.so.11: cannot open shared object file')",
            "TensorRT does not load: libnvinfer.so.11: cannot open",
        ),
    ],
)
def test_engine_build_without_a_loadable_tensorrt_is_refused(
    fake_tensorrt: Any,
    own_build: Build,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    module: str,
    message: str,
) -> None:
    del sys.modules["tensorrt"]
    (tmp_path / "tensorrt.py").write_text(module)
    monkeypatch.syspath_prepend(tmp_path)
    assert message in refusal(own_build)
