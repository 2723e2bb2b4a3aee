"""Builds with an engine for the fake TensorRT, and the fakes in place of the real modules."""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from snapexport.contract.build_directory import Build
from snapexport.contract.engines import EngineEntry, EngineFile, GraphEngine
from tests.runtime import fake_tensorrt
from tests.runtime.fake_cuda import FakeCuda

PLAN: dict[str, Any] = {
    "tensorrt": fake_tensorrt.__version__,
    "device_memory": 1000,
    "version_compatible": False,
    "stripped": False,
    "refittable": True,
    "plugins": False,
    "capturable": True,
    "context": True,
    "aliases": True,
    "bf16": False,
    "shapes": {},
}
"""Fields of a fake plan beside its graph."""

ENTRY = EngineEntry(
    tensorrt=fake_tensorrt.__version__,
    compute_capability="9.0",
    gpu="NVIDIA Fake",
    hardware_compatibility="none",
    version_compatible=False,
    stripped=False,
    plugins=None,
    graphs={},
)


def install(monkeypatch: pytest.MonkeyPatch, **options: Any) -> FakeCuda:
    """Both fakes for one test; the GPU is new."""
    gpu = FakeCuda(**options)
    monkeypatch.setattr(fake_tensorrt, "cuda", gpu)
    monkeypatch.setattr(fake_tensorrt.ICudaEngine, "executions", [])
    monkeypatch.setitem(sys.modules, "tensorrt", fake_tensorrt)
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", gpu)
    return gpu


def file(path: Path, content: bytes) -> EngineFile:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    # An absolute path, so that builds which tests share stay as they are.
    digest = hashlib.sha256(content).hexdigest()
    return EngineFile(file=str(path), size=len(content), sha256=digest)


def entry_of(build: Build, folder: Path, entry: EngineEntry = ENTRY, **plan: Any) -> EngineEntry:
    """A plan for every graph, the same options in each."""
    plans = {}
    for name in build.manifest.graphs:
        content = json.dumps(PLAN | {"graph": str(build.graph(name))} | plan).encode()
        made = file(folder / f"{name}.engine", content)
        plans[name] = GraphEngine(**made.model_dump(), device_memory=1000)
    return entry.model_copy(update={"graphs": plans})


def with_engines(build: Build, **engines: EngineEntry) -> Build:
    """The build as `snapexport engine` leaves it."""
    manifest = build.manifest.model_copy(update={"engines": engines, "target": "tensorrt"})
    return Build(build.directory, manifest)
