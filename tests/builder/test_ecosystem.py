"""Every graph of every kind of build opens in the tools that people use on ONNX files."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import onnx
import onnx_graphsurgeon as gs
import onnx_ir as ir
import onnxruntime as ort
import pytest
from polygraphy.tools._main import main as polygraphy

from snapexport.builder.derive import derive
from snapexport.contract.build_directory import Build
from snapexport.contract.geometry import CacheGeometry
from tests.builds import build
from tests.oracle import checkpoints

STANDARD = {"", "snapexport"}
"""Domains that onnx.checker knows: the standard's, and ours, whose functions each graph carries."""


@dataclass(frozen=True)
class Kind:
    """A way to make a build, and whether its graphs run here."""

    options: dict[str, Any]
    shards: str | None = None
    in_hub_cache: bool = False
    runs: bool = True


KINDS = {
    "fp32, baseline": Kind({"baseline": True, "batch": 2}),
    "fp16": Kind({"dtype": "fp16"}),
    "int4": Kind({"weights": "int4"}),
    "int8 caches": Kind({"cache_dtype": "int8"}),
    "portable, single shot": Kind({"target": "portable", "prefill_chunk": 64}),
    "tensorrt, bf16": Kind({"target": "tensorrt", "dtype": "bf16"}, runs=False),
    "tensorrt, int4": Kind({"target": "tensorrt", "weights": "int4"}),
    "sharded checkpoint": Kind({"policy": "streaming"}, shards="100KB"),
    "hub cache": Kind({"policy": "full"}, in_hub_cache=True),
}


def make_checkpoint(kind: Kind, directory: Path) -> Path:
    """The Hub's cache has a symlink for each file, to a blob named by its hash."""
    sizes = {"max_shard_size": kind.shards} if kind.shards else {}
    model = checkpoints.make("llama", directory / "model", **sizes)
    if kind.in_hub_cache:
        blob = directory / "blobs" / ("ab" * 32)
        blob.parent.mkdir()
        (model / "model.safetensors").rename(blob)
        (model / "model.safetensors").symlink_to(blob)
    return model


@cache
def built(name: str, workspace: Path) -> Build:
    kind, directory = KINDS[name], workspace / str(list(KINDS).index(name))
    options = {"batch": 1, "L_max": 64, "decode_batches": ()} | kind.options
    return build(make_checkpoint(kind, directory), directory / "b", **options)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("ecosystem")
    yield directory
    built.cache_clear()
    shutil.rmtree(directory)


def require_opens(path: Path, *, runs: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """Raise what a tool raises."""
    model = onnx.load(path)
    domains = {node.domain for node in model.graph.node}
    if domains <= STANDARD:
        onnx.checker.check_model(path)
    gs.import_onnx(model)
    for value in ir.load(path).graph.initializers.values():
        assert value.const_value is not None
        value.const_value.numpy()
    assert polygraphy(["inspect", "model", str(path)]) == 0
    assert "Graph Input" in capsys.readouterr().out
    if runs:
        ort.InferenceSession(path, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("name", KINDS)
def test_every_graph_opens_in_the_tools_of_the_ecosystem(
    name: str, workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = built(name, workspace)
    files = {entry.file for entry in made.manifest.graphs.values()}
    traces = {entry.file for entry in made.manifest.traces.values()}
    assert {path.name for path in made.directory.glob("*.onnx")} == files | traces
    for file in sorted(files):
        require_opens(made.directory / file, runs=KINDS[name].runs, capsys=capsys)
    for file in sorted(traces):  # markers, which no runtime knows
        require_opens(made.directory / file, runs=False, capsys=capsys)


def test_every_graph_of_a_derived_build_opens(
    workspace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = built("fp32, baseline", workspace)
    full = CacheGeometry.full(64, own.manifest.geometry.slots.num_caches)
    derived = derive(own, full, tmp_path / "d")
    for entry in derived.manifest.graphs.values():
        require_opens(derived.directory / entry.file, runs=True, capsys=capsys)


def test_weight_files_are_regular_and_have_one_link(workspace: Path) -> None:
    made = built("hub cache", workspace)
    files = [made.directory / weights.file for weights in made.manifest.weights]
    assert {file.parent for file in files} == {made.directory / "weights"}
    assert all(file.lstat().st_nlink == 1 and not file.is_symlink() for file in files)


def test_onnx_refuses_hard_links_and_onnxruntime_does_not(workspace: Path, tmp_path: Path) -> None:
    """`inspect` warns of this for builds with --link-weights."""
    model = make_checkpoint(KINDS["fp16"], tmp_path)
    made = build(model, tmp_path / "b", L_max=64, batch=1, policy="full", link_weights=True)
    path = made.graph("decode")
    with pytest.raises(onnx.checker.ValidationError, match="hard link"):
        onnx.load(path)
    ort.InferenceSession(path, providers=["CPUExecutionProvider"])
