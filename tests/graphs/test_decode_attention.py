"""Decode attention over only the valid cache slots: equal to that over all, and in place."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from snapexport.builder.derive import derive
from snapexport.contract import names
from snapexport.contract.build_directory import Build
from snapexport.contract.graph_options import GraphOptions
from snapexport.contract.records import GeometryRecord
from tests.bound import BoundGraph
from tests.oracle.cases import Case, build_of
from tests.oracle.compare import assert_agrees

LLAMA = Case(decode_attention="valid", decode_batches=(1, 3), baseline=True)
GEMMA = Case("gemma2", decode_attention="valid", baseline=True)
"""Soft-capped scores, and layers that slide beside those that vote."""

both_models = pytest.mark.parametrize("case", [LLAMA, GEMMA], ids=["llama", "gemma2"])


@pytest.fixture(autouse=True)
def _library_warnings() -> None:
    """Warnings of ONNX Runtime, which `snapexport diff` may have silenced in this process."""
    ort.set_default_logger_severity(2)


def filled(build: Build, graph: str = "decode") -> BoundGraph:
    """Random caches; rings that are half full, full, and past their first turn."""
    bound, rng = BoundGraph(build, graph), np.random.default_rng(0)
    for name, array in bound.arrays.items():
        if names.is_past(name):
            array[...] = rng.standard_normal(array.shape)
    slots = len(bound.arrays[names.INPUT_IDS])
    bound.arrays[names.INPUT_IDS][:, 0] = rng.integers(3, 250, slots)
    bound.arrays[names.POSITION_IDS][:, 0] = [7, 61, 30][:slots]
    bound.arrays[names.PROMPT_LENGTH][:] = [5, 40, 30][:slots]
    return bound


def require_same(got: BoundGraph, expected: BoundGraph, slots: int = 3) -> None:
    got.run()
    expected.run()
    for name, array in expected.arrays.items():
        np.testing.assert_allclose(got.arrays[name], array[:slots], atol=2e-5, err_msg=name)


@both_models
def test_valid_slot_attention_equals_attention_over_all_cache_slots(
    case: Case, tmp_path: Path, capfd: Any
) -> None:
    build = build_of(case)
    over_all = derive(build, build.manifest.geometry, tmp_path / "all", GraphOptions())
    require_same(filled(build), filled(over_all))
    assert "onnxruntime" not in capfd.readouterr().err, "a cache was copied"


def test_valid_slot_decode_graph_of_one_batch_slot_equals_that_of_all(capfd: Any) -> None:
    whole, first = filled(build_of(LLAMA)), filled(build_of(LLAMA), "decode.1")
    for name, array in first.arrays.items():
        array[...] = whole.arrays[name][:1]
    require_same(first, whole, slots=1)
    assert "onnxruntime" not in capfd.readouterr().err, "a cache was copied"


@pytest.mark.parametrize(
    ("sinks", "ring", "kept"), [(0, 1, 0), (4, 16, (0, 30)), (0, (9, 24), (7, 0))]
)
def test_valid_slot_attention_equals_attention_over_all_in_edge_geometries(
    sinks: int, ring: Any, kept: Any, tmp_path: Path
) -> None:
    """A ring of one slot, layers that differ."""
    build = build_of(LLAMA)
    geometry = GeometryRecord("snapstream", 96, 2, sinks, ring, kept, L_obs=1).geometry()
    valid, over_all = (
        derive(build, geometry, tmp_path / one, GraphOptions(decode_attention=one))
        for one in ("valid", "all")
    )
    require_same(filled(valid), filled(over_all))


def test_valid_slot_attention_does_not_read_invalid_cache_slots() -> None:
    clean, spoilt = filled(build_of(LLAMA)), filled(build_of(LLAMA))
    for name, array in spoilt.arrays.items():
        if names.is_past(name):
            array[0, :, 8:] = np.nan  # position 7 is the last that the first slot holds
    np.testing.assert_array_equal(spoilt.run(), clean.run())


@both_models
def test_valid_slot_attention_build_agrees_with_the_oracle(case: Case) -> None:
    assert_agrees(case, (1, 40, 96), steps=24)


def test_valid_slot_decode_graph_outputs_each_cache_as_attended_too() -> None:
    manifest = build_of(LLAMA).manifest
    assert (manifest.graph_options.decode_attention, manifest.cache_dtype) == ("valid", "fp32")
    outputs = {spec.name: spec for spec in manifest.graphs["decode"].outputs}
    for layer in range(2):
        for part in ("key", "value"):
            once_more = outputs[f"attended.{layer}.{part}"]
            assert once_more.shape == outputs[f"present.{layer}.{part}"].shape
            assert names.past_of(once_more.name) == f"past_key_values.{layer}.{part}"


def test_valid_slot_attention_leaves_the_baseline_graphs_unchanged() -> None:
    build = build_of(LLAMA)
    outputs = {
        name: {spec.name.split(".")[0] for spec in graph.outputs}
        for name, graph in build.manifest.graphs.items()
    }
    assert {name for name in outputs if "attended" in outputs[name]} == {"decode", "decode.1"}
    model = onnx.load(build.graph("decode"), load_external_data=False)
    assert {"TensorScatter", "GroupQueryAttention"} <= {one.op_type for one in model.graph.node}
