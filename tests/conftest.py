"""What tests share: a tiny checkpoint, a build of it, and the store; one thread for each worker.

Fixtures import what they need: the process that only hands out tests to others loads this file too.
"""

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from snapexport.contract.build_directory import Build
    from tests.store import Store


for _threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_threads, "1")  # libraries read it when they load

# The machines that run these tests are shared.
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")


def pytest_collection_finish() -> None:
    """What is loaded by now stays: no collection of garbage needs to look at it again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # graphs have many objects and few cycles: 700 finds nothing


@pytest.fixture(scope="session")
def store() -> "Iterator[Store | None]":
    """What tests share with other workers, runs and clones; None: everything is made anew."""
    from tests import store

    if store.is_off():
        yield None
        return
    yield (used := store.Store(store.usual_folder()))
    used.trim()


@pytest.fixture(scope="session", autouse=True)
def made_once(store: "Store | None", one_thread: None) -> Iterator[None]:
    """Traces, builds and the oracle's answers come from the store."""
    if store is None:
        yield
        return
    from tests import builds, trace_cache
    from tests.oracle import on_disk

    with trace_cache.kept_in(store), on_disk.kept_in(store), builds.kept_in(store):
        yield


@pytest.fixture(scope="session")
def one_thread() -> Iterator[None]:
    """A worker computes on one thread: two workers with two each wait for one another."""
    import onnxruntime
    import torch

    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        opened = onnxruntime.InferenceSession.__init__

        def open_with_one_thread(
            self: Any, model: Any, sess_options: Any = None, *args: Any, **options: Any
        ) -> None:
            sess_options = sess_options or onnxruntime.SessionOptions()
            if sess_options.intra_op_num_threads == 0:
                sess_options.intra_op_num_threads = 1
            opened(self, model, sess_options, *args, **options)

        patch.setattr(onnxruntime.InferenceSession, "__init__", open_with_one_thread)
        yield


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.oracle import checkpoints

    return checkpoints.make("llama", tmp_path_factory.mktemp("checkpoints") / "llama")


@pytest.fixture(scope="session")
def tiny_build(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> "Build":
    from tests.builds import build

    out = tmp_path_factory.mktemp("builds") / "llama.build"
    return build(
        checkpoint, out, L_max=64, L_recent=12, K=8, L_obs=4, prefill_chunk=24, baseline=True
    )


@pytest.fixture(scope="session")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Type stubs of TensorRT's real bindings, as the folder of a module `tensorrt`."""
    from tests.fakes.bindings import make_stubs

    return make_stubs(tmp_path_factory.mktemp("stubs"))
