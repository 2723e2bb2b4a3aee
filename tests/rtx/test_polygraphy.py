"""Polygraphy reads and compiles our graphs by TensorRT for RTX."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from snapexport.contract.build_directory import Build

ENVIRONMENT = os.environ | {"POLYGRAPHY_USE_TENSORRT_RTX": "1", "POLYGRAPHY_AUTOINSTALL_DEPS": "0"}


def polygraphy(*words: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("polygraphy")), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=ENVIRONMENT)


@pytest.mark.parametrize("graph", ["prefill", "compress", "decode"])
def test_polygraphy_converts_each_graph(graph: str, made: Build, tmp_path: Path) -> None:
    out = tmp_path / "one.engine"
    options = ["--convert-to", "trt", "--compute-capabilities", "8.9", "-o", str(out)]
    done = polygraphy("convert", str(made.graph(graph)), *options)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert out.stat().st_size > 100_000


def test_polygraphy_finds_every_operator_supported(made: Build) -> None:
    done = polygraphy("inspect", "capability", str(made.graph("decode")))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "fully supported" in done.stdout
