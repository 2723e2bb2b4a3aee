"""A build for TensorRT, and a FAKE TensorRT to build engines with."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from snapexport.contract.build_directory import Build
from tests.builds import build
from tests.fakes import tensorrt
from tests.fakes.plans import LIBRARY, install


@pytest.fixture(scope="session")
def shared_build(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Build:
    """A build for TensorRT. No test changes it."""
    out = tmp_path_factory.mktemp("tensorrt") / "llama.build"
    options: dict[str, Any] = {"L_max": 64, "L_recent": 12, "K": 8, "L_obs": 4, "prefill_chunk": 24}
    options["decode_batches"] = ()
    return build(checkpoint, out, target="tensorrt", baseline=True, **options)


@pytest.fixture
def own_build(shared_build: Build, tmp_path: Path) -> Build:
    """A copy of the shared build that a test may change."""
    return Build.open(shutil.copytree(shared_build.directory, tmp_path / "copy.build"))


@pytest.fixture
def plugin_library(tmp_path: Path) -> Path:
    path = tmp_path / "libplugins.so"
    path.write_bytes(LIBRARY)
    return path


@pytest.fixture
def fake_tensorrt(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The FAKE TensorRT in the place of the real one, with one GPU; our modules import it anew."""
    install(monkeypatch)
    for name in _ours():
        monkeypatch.delitem(sys.modules, name)
    yield tensorrt
    for name in _ours():
        del sys.modules[name]


def _ours() -> list[str]:
    return [name for name in sys.modules if name.startswith("snapexport.builder.engines.tensorrt_")]
