"""A tiny checkpoint and a build of it, shared by the tests that only read them; traces on disk."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from snapexport.builder import build
from snapexport.contract.build_directory import Build
from snapexport.exporter import trace
from tests import trace_cache
from tests.fakes.bindings import make_stubs
from tests.oracle import checkpoints


@pytest.fixture(scope="session", autouse=True)
def cached_traces(pytestconfig: pytest.Config) -> Iterator[None]:
    """Builds of this process take their traces from .pytest_cache."""
    if os.environ.get("SNAPEXPORT_TRACE_CACHE") == "off" or not hasattr(pytestconfig, "cache"):
        yield
        return
    folder = pytestconfig.cache.mkdir("snapexport-traces")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("trace_prefill", "trace_decode"):
            patch.setattr(trace, name, trace_cache.caching(getattr(trace, name), folder))
        yield


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.make("llama", tmp_path_factory.mktemp("checkpoints") / "llama")


@pytest.fixture(scope="session")
def tiny_build(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Build:
    out = tmp_path_factory.mktemp("builds") / "llama.build"
    return build(
        checkpoint, out, L_max=64, L_recent=12, K=8, L_obs=4, prefill_chunk=24, baseline=True
    )


@pytest.fixture(scope="session")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Type stubs of TensorRT's real bindings, as the folder of a module `tensorrt`."""
    return make_stubs(tmp_path_factory.mktemp("stubs"))
