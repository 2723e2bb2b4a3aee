"""Operators of finished graphs, and errors of passes that do not match."""

from pathlib import Path

import onnx
import onnx_graphsurgeon as gs
import pytest

from snapexport.contract.build_directory import Build
from snapexport.graphs.markers import ATTENTION, TRACE_DOMAIN
from snapexport.graphs.passes.base import SurgeryError, markers
from tests.builds import build


def domains(model: onnx.ModelProto) -> set[str]:
    return {node.domain for node in model.graph.node}


def load(build: Build, name: str) -> onnx.ModelProto:
    return onnx.load(build.directory / f"{name}.onnx", load_external_data=False)


@pytest.mark.parametrize("graph", ["prefill", "compress", "decode", "baseline-decode"])
def test_graphs_are_of_opset_24_with_every_dimension_fixed(tiny_build: Build, graph: str) -> None:
    model = load(tiny_build, graph)
    assert model.ir_version <= 13
    assert {o.version for o in model.opset_import if o.domain == ""} == {24}
    for value in (*model.graph.input, *model.graph.output):
        assert all(dim.dim_value > 0 for dim in value.type.tensor_type.shape.dim), value.name


def test_finished_graphs_hold_no_trace_markers(tiny_build: Build) -> None:
    for name in tiny_build.manifest.graphs:
        assert domains(load(tiny_build, name)) <= {"", "snapexport", "com.microsoft"}


def test_a_graph_carries_just_the_functions_that_it_calls(tiny_build: Build) -> None:
    functions = {n: {f.name for f in load(tiny_build, n).functions} for n in ("compress", "decode")}
    assert functions == {"compress": {"SnapKVSelect", "SnapStreamGather"}, "decode": {"RingSlot"}}


def test_the_portable_target_has_only_standard_operators(checkpoint: Path, tmp_path: Path) -> None:
    made = build(checkpoint, tmp_path / "b", L_max=64, target="portable", baseline=True)
    for name in made.manifest.graphs:
        assert domains(load(made, name)) <= {"", "snapexport"}
        onnx.checker.check_model(made.graph(name))


def test_decode_graph_neither_embeds_nor_transposes_weights(tiny_build: Build) -> None:
    model = load(tiny_build, "decode")
    assert max(tensor.ByteSize() for tensor in model.graph.initializer) < 256
    assert max(node.ByteSize() for node in model.graph.node) < 512
    assert not any(
        node.op_type == "Transpose" and node.input[0].endswith(".weight")
        for node in model.graph.node
    )


def test_two_markers_of_a_layer_are_an_error() -> None:
    nodes = [gs.Node(ATTENTION, domain=TRACE_DOMAIN, attrs={"layer": 1}) for _ in range(2)]
    with pytest.raises(SurgeryError, match="layers \\[1, 1\\]"):
        markers(gs.Graph(nodes=nodes), TRACE_DOMAIN, ATTENTION)
