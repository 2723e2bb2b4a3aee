"""A build for TensorRT, the bindings' stubs, and a FAKE TensorRT to build engines with."""

import importlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from snapexport.builder import build
from snapexport.contract.build_directory import Build
from tests.engines.bindings import make_stubs

FAKES = Path(__file__).parent / "fakes"


@pytest.fixture(scope="session")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Type stubs of TensorRT's real bindings, as the folder of a module `tensorrt`."""
    return make_stubs(tmp_path_factory.mktemp("stubs"))


@pytest.fixture(scope="session")
def shared_build(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Build:
    """A build for TensorRT. No test changes it."""
    out = tmp_path_factory.mktemp("tensorrt") / "llama.build"
    options = {"L_max": 64, "L_recent": 12, "K": 8, "L_obs": 4, "prefill_chunk": 24}
    return build(checkpoint, out, target="tensorrt", baseline=True, **options)


@pytest.fixture
def own_build(shared_build: Build, tmp_path: Path) -> Build:
    """A copy of the shared build that a test may change."""
    return Build.open(shutil.copytree(shared_build.directory, tmp_path / "copy.build"))


@pytest.fixture
def plugin_library(tmp_path: Path) -> Path:
    path = tmp_path / "libplugins.so"
    path.write_bytes(b"\x7fELF of no kind")
    return path


@pytest.fixture
def fake_tensorrt(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The FAKE TensorRT in the place of the real one, with one GPU; our modules import it anew."""
    aside = {name: sys.modules.pop(name) for name in _touched()}
    monkeypatch.syspath_prepend(FAKES)
    yield importlib.import_module("tensorrt")
    for name in _touched():
        del sys.modules[name]
    sys.modules.update(aside)


def _touched() -> list[str]:
    def is_ours(name: str) -> bool:
        return name.startswith("snapexport.engines.tensorrt_")

    return [
        name
        for name in sys.modules
        if is_ours(name) or name.partition(".")[0] in ("tensorrt", "cuda")
    ]
