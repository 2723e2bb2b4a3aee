"""`snapexport engine` over the real library, on a machine without a GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from snapexport.contract.build_directory import Build
from tests.builds import build
from tests.rtx.conftest import SMALL


@pytest.fixture
def made(checkpoint: Path, tmp_path: Path) -> Build:
    return build(checkpoint, tmp_path / "b", target="tensorrt-rtx", dtype="fp16", **SMALL)


def engine(made: Build, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "snapexport", "engine", str(made.directory), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_engines_are_built_for_named_capabilities_and_recorded(made: Build) -> None:
    done = engine(made, "--compute-capability", "8.6", "12.0", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    entry = Build.open(made.directory).manifest.engines[told.pop("name")]
    assert told == entry.model_dump()
    assert (entry.compute_capabilities, entry.gpu) == (["8.6", "12.0"], None)
    assert set(entry.graphs) == set(made.manifest.graphs)
    for one in entry.graphs.values():
        assert (made.directory / one.file).stat().st_size == one.size
        assert one.device_memory > 0
    inspected = [sys.executable, "-m", "snapexport", "inspect", str(made.directory), "--verify"]
    assert subprocess.run(inspected, capture_output=True).returncode == 0


def test_second_engine_run_builds_only_missing_graphs(made: Build) -> None:
    assert engine(made, "--compute-capability", "8.9", "--graphs", "decode").returncode == 0
    first = next((made.directory / "engines").rglob("decode.engine")).stat().st_mtime_ns
    assert engine(made, "--compute-capability", "8.9").returncode == 0
    assert next((made.directory / "engines").rglob("decode.engine")).stat().st_mtime_ns == first
    again = engine(made, "--compute-capability", "8.9")
    assert again.returncode == 2 and "has every engine already" in again.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--compute-capability", "9.0"], "9.0 is not one of TensorRT for RTX's"),
        (["--strip-weights"], "--strip-weights is not supported by TensorRT for RTX"),
        (["--plugins", os.devnull], "--plugins"),
        (["--refit"], "--refit is not supported by TensorRT for RTX"),
    ],
)
def test_engine_options_unknown_to_tensorrt_rtx_are_refused(
    made: Build, options: list[str], message: str
) -> None:
    done = engine(made, *options)
    assert done.returncode == 2 and message in done.stderr and "hint: " in done.stderr
    assert not (made.directory / "engines").exists()


def test_failed_engine_shows_its_first_error_and_leaves_no_file(made: Build) -> None:
    done = engine(made, "--workspace", "4KiB")
    assert done.returncode == 2
    assert "TensorRT for RTX built no engine of " in done.stderr and "workspace" in done.stderr
    assert not list((made.directory / "engines").rglob("*.engine*"))
