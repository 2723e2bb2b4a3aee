"""Builds with plans of the fake TensorRT, and the fakes in place of the real modules."""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from snapexport.contract import tensorrt_bindings
from snapexport.contract.build_directory import Build, in_place
from snapexport.contract.engines import EngineEntry, EngineFile, GraphEngine
from tests.fakes import cuda, tensorrt
from tests.fakes.cuda import FakeCuda

ENTRY = EngineEntry(
    version=tensorrt.__version__,
    compute_capabilities=["9.0"],
    gpu="NVIDIA Fake",
    hardware_compatibility="none",
    version_compatible=False,
    stripped=False,
    plugins=None,
    graphs={},
)
LIBRARY = b"\x7fELF of no kind"


def install(monkeypatch: pytest.MonkeyPatch, **options: Any) -> FakeCuda:
    """TensorRT and CUDA for one test; the GPU is new."""
    gpu = cuda.install(monkeypatch, **options)
    monkeypatch.setattr(tensorrt, "gpu", gpu)
    monkeypatch.setitem(sys.modules, "tensorrt", tensorrt)
    monkeypatch.setattr(tensorrt_bindings, "_used", None)
    tensorrt.planted.clear()
    tensorrt.calls.clear()
    return gpu


def file(path: Path, content: bytes) -> EngineFile:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    # An absolute path, which a manifest refuses: builds which tests share stay as they are.
    digest = hashlib.sha256(content).hexdigest()
    return EngineFile.model_construct(file=str(path), size=len(content), sha256=digest)


def entry_of(
    build: Build, folder: Path, entry: EngineEntry = ENTRY, aliases: bool = True, **plan: Any
) -> EngineEntry:
    """A plan for every graph, the same options in each."""
    plans = {}
    for name, graph in build.manifest.graphs.items():
        shared = in_place(name, graph) if aliases else {}
        told = tensorrt.PLAN | {"graph": str(build.graph(name)), "aliases": shared} | plan
        made = file(folder / f"{name}.engine", json.dumps(told).encode())
        facts = made.model_dump() | {"file": _within(build, made.file)}
        plans[name] = GraphEngine.model_construct(**facts, device_memory=told["device_memory"])
    return entry.model_copy(update={"graphs": plans})


def _within(build: Build, file: str) -> str:
    """The path as a manifest has it, of a file that lies in the build."""
    path = Path(file)
    if path.is_relative_to(build.directory):
        return path.relative_to(build.directory).as_posix()
    return file


def with_engines(build: Build, **engines: EngineEntry) -> Build:
    """The build as `snapexport engine` leaves it."""
    manifest = build.manifest.model_copy(update={"engines": engines, "target": "tensorrt"})
    return Build(build.directory, manifest)


def in_bf16(build: Build) -> Build:
    """A build whose manifest says that all floats but the logits are bf16."""
    manifest = build.manifest.model_copy(update={"engines": {}})
    text = manifest.model_dump_json().replace('"float32"', '"bfloat16"')
    text = text.replace('"logits","dtype":"bfloat16"', '"logits","dtype":"float32"')
    read = type(manifest).model_validate_json(text)
    return Build(build.directory, read.model_copy(update={"engines": build.manifest.engines}))
