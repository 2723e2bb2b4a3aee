"""The lint finds planted faults by a target's record, and nothing in sound graphs."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto
from onnx.helper import make_node, make_opsetid, make_tensor_value_info

from snapexport.builder.graph_files import Traces
from snapexport.builder.lint import lint_model
from snapexport.contract.build_directory import Build
from snapexport.graphs.method import Recipe
from snapexport.graphs.surgery import finish
from tests.builds import build

Model = onnx.ModelProto
WIDE = np.arange(5000, dtype=np.float32)


@pytest.fixture(scope="module")
def tensorrt_build(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Build:
    out = tmp_path_factory.mktemp("lint") / "b"
    options: dict[str, Any] = {"L_max": 64, "L_recent": 12, "K": 8, "L_obs": 4, "batch": 2}
    return build(checkpoint, out, target="tensorrt", prefill_chunk=24, baseline=True, **options)


def load(build: Build, name: str) -> Model:
    return onnx.load(build.graph(name), load_external_data=False)


def append(*nodes: NodeProto, **initializers: Any) -> Callable[[Model], None]:
    """Add nodes, and what they read."""

    def plant(model: Model) -> None:
        model.graph.node.extend(nodes)
        tensors = [onnx.numpy_helper.from_array(v, k) for k, v in initializers.items()]
        model.graph.initializer.extend(tensors)

    return plant


def open_length(model: Model) -> None:
    cache = next(i for i in model.graph.input if i.name.startswith("past"))
    cache.type.tensor_type.shape.dim[2].dim_param = "length"


def vendor_operator(model: Model) -> None:
    model.opset_import.append(make_opsetid("com.microsoft", 1))
    append(make_node("FusedMatMul", ["x", "x"], ["y"], domain="com.microsoft"), x=WIDE)(model)


def bodiless(model: Model) -> None:
    del model.functions[:]


def unknown_topk(model: Model) -> None:
    model.graph.input.append(make_tensor_value_info("k", TensorProto.INT64, [1]))
    append(make_node("TopK", ["past_key_values.0.key", "k"], ["best", "places"]))(model)


FAULTS: dict[str, tuple[str, Callable[[Model], object], str]] = {
    "another vendor's operator": ("decode", vendor_operator, "no com.microsoft::FusedMatMul"),
    "a function without a body": ("decode", bodiless, "no snapexport::"),
    "an operator that ONNX lacks": (
        "decode",
        append(make_node("Mine", ["x"], ["y"]), x=WIDE),
        "no ai.onnx::Mine",
    ),
    "a cast to double": (
        "decode",
        append(make_node("Cast", ["x"], ["y"], to=TensorProto.DOUBLE), x=WIDE),
        "does not compute in DOUBLE",
    ),
    "a cache of open length": ("decode", open_length, "its shape is not fixed"),
    "a large TopK": (
        "decode",
        append(make_node("TopK", ["x", "k"], ["best", "places"]), x=WIDE, k=np.array([3841])),
        "K is 3841, and may be at most 3840",
    ),
    "a TopK of unknown size": ("compress", unknown_topk, "K is not fixed"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_lint_finds_a_planted_fault(tensorrt_build: Build, fault: str) -> None:
    graph, plant, message = FAULTS[fault]
    model = load(tensorrt_build, graph)
    assert lint_model(model, graph, "tensorrt") == []
    plant(model)
    findings = lint_model(model, graph, "tensorrt")
    assert any(message in finding.message for finding in findings), findings
    assert all(finding.graph == graph and finding.node for finding in findings)


def test_lint_accepts_a_large_vote_only_when_split_into_rounds(tensorrt_build: Build) -> None:
    trace = Traces.of(tensorrt_build).models["prefill"]
    own = tensorrt_build.manifest.geometry
    geometry = replace(own, L_max=8192, slots=replace(own.slots, K=3841))
    whole_vote = finish("compress", trace, Recipe(geometry, "portable"))
    findings = lint_model(whole_vote, "compress", "tensorrt")
    assert findings and all("at most 3840" in finding.message for finding in findings)
    assert all(finding.node.startswith("SnapKVSelect.") for finding in findings)
    in_rounds = finish("compress", trace, Recipe(geometry, "tensorrt"))
    assert lint_model(in_rounds, "compress", "tensorrt") == []
