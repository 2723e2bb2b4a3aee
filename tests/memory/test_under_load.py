"""Servers of the bundled checkpoint under load, for seconds; `make test-memory` takes minutes."""

import asyncio
import os
from pathlib import Path

import pytest

from snapexport.contract.build_directory import Build
from snapexport.serving.memory.bound import ServerMemory
from snapexport.serving.options import ServeOptions
from snapexport.vault import CHECKPOINT
from tests.builds import build as make_build
from tests.memory.load import Readings, loaded, measured, problems
from tests.serving import process

pytestmark = pytest.mark.slow

CLIENTS, CALM = 60, 8.0


@pytest.fixture(scope="module")
def of_openvino(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("openvino")
    out = tmp_path_factory.mktemp("memory") / "openvino.build"
    sizes = {"L_max": 2064, "kv_budget": 128, "batch": 8, "prefill_chunk": 256}
    return make_build(CHECKPOINT, out, **sizes, target="openvino").directory


def under_load(build: Path, backend: str) -> Readings:
    """In the least memory that holds a queue of 16."""
    options = ServeOptions(build, backend=backend, max_pending=16)  # type: ignore[arg-type]
    server = ServerMemory(Build.open(build), options)
    memory = min(server.with_queue(q).nbytes for q in server.queues() if q.max_pending == 16)
    flags = ("--backend", backend, "--max-pending", "16", "--memory", str(memory))
    with loaded(build, *flags) as (serving, load):
        return asyncio.run(measured(serving, load, CALM, CLIENTS))


def test_onnxruntime_stays_below_its_bound(build: Path) -> None:
    assert problems(under_load(build, "onnxruntime")) == []


def test_openvino_stays_below_its_bound(of_openvino: Path) -> None:
    assert problems(under_load(of_openvino, "openvino")) == []


def test_planted_leak_is_caught(build: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "MODULE", "tests.memory.planted")
    monkeypatch.setitem(os.environ, "PLANTED", "unwatched")
    found = problems(under_load(build, "onnxruntime"))
    assert found and "bytes are resident, the bound is" in found[0]


def test_watch_keeps_a_leak_below_the_bound(build: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "MODULE", "tests.memory.planted")
    readings = under_load(build, "onnxruntime")
    assert problems(readings) == []
    assert readings.statuses["503"], "nothing was refused: the leak was not planted"
