"""A tiny checkpoint and a build of it, shared by the tests that only read them; traces on disk.

Fixtures import what they need: the process that only hands out tests to others loads this file too.
"""

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from snapexport.contract.build_directory import Build


def pytest_collection_finish() -> None:
    """What is loaded by now stays: no collection of garbage needs to look at it again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # graphs have many objects and few cycles: 700 finds nothing


@pytest.fixture(scope="session", autouse=True)
def cached_traces(pytestconfig: pytest.Config) -> Iterator[None]:
    """Builds of this process take traces, and tests the oracle's answers, from .pytest_cache."""
    if os.environ.get("SNAPEXPORT_TRACE_CACHE") == "off" or not hasattr(pytestconfig, "cache"):
        yield
        return
    from tests import trace_cache
    from tests.oracle import on_disk

    traces, answers = (
        pytestconfig.cache.mkdir(f"snapexport-{name}") for name in ("traces", "oracle")
    )
    with trace_cache.kept_in(traces), on_disk.kept_in(answers):
        yield


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.oracle import checkpoints

    return checkpoints.make("llama", tmp_path_factory.mktemp("checkpoints") / "llama")


@pytest.fixture(scope="session")
def tiny_build(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> "Build":
    from snapexport.builder import build

    out = tmp_path_factory.mktemp("builds") / "llama.build"
    return build(
        checkpoint, out, L_max=64, L_recent=12, K=8, L_obs=4, prefill_chunk=24, baseline=True
    )


@pytest.fixture(scope="session")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Type stubs of TensorRT's real bindings, as the folder of a module `tensorrt`."""
    from tests.fakes.bindings import make_stubs

    return make_stubs(tmp_path_factory.mktemp("stubs"))
