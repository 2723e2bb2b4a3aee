"""What the onnxruntime target does for speed, held against plain operators and numbers."""

from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from snapexport.building.graph_files import Traces
from snapexport.contract import names
from snapexport.contract.build_directory import Build
from snapexport.graphs import surgery
from snapexport.graphs.targets.fused_matmul import FusedMatMul

Arrays = dict[str, NDArray[Any]]


def run(model: onnx.ModelProto, inputs: Arrays) -> Arrays:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    outputs = [value.name for value in session.get_outputs()]
    return dict(zip(outputs, session.run(outputs, inputs), strict=True))


@pytest.mark.parametrize("prompt_length", [1, 8, 20, 37, 63, 64])
def test_a_vote_over_the_prompt_is_one_over_the_whole_cache(
    tiny_build: Build, prompt_length: int
) -> None:
    """What lies behind the prompt is left by a longer one, and far larger."""
    trace, geometry = Traces.of(tiny_build).prefill, tiny_build.manifest.geometry
    ours, plain = (surgery.compress(trace, geometry, t) for t in ("onnxruntime", "portable"))
    assert "Slice" in {node.op_type for node in ours.graph.node}
    rng = np.random.default_rng(prompt_length)
    inputs: Arrays = {}
    for value in ours.graph.input:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        inputs[value.name] = rng.standard_normal(shape, np.float32)
        if names.is_past(value.name):
            inputs[value.name][:, :, prompt_length:] *= 1000
    inputs[names.PROMPT_LENGTH] = np.array([prompt_length])
    found, expected = run(ours, inputs), run(plain, inputs)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, name)


def linear(leading: list[int], dtype: type[np.floating[Any]] = np.float32) -> gs.Graph:
    """x [*leading,24] @ Transpose(W [40,24])."""
    weight = gs.Constant("W", np.random.default_rng(0).standard_normal((40, 24)).astype(dtype))
    x, y = gs.Variable("x", dtype, [*leading, 24]), gs.Variable("y", dtype, [*leading, 40])
    transposed = gs.Variable("Wt", dtype, [24, 40])
    nodes = [
        gs.Node("Transpose", attrs={"perm": [1, 0]}, inputs=[weight], outputs=[transposed]),
        gs.Node("MatMul", inputs=[x, transposed], outputs=[y]),
    ]
    return gs.Graph(nodes, inputs=[x], outputs=[y], opset=24)


def rewritten(graph: gs.Graph) -> onnx.ModelProto:
    FusedMatMul().apply(graph)
    graph.cleanup().toposort()
    opsets = [onnx.helper.make_opsetid("", 24), onnx.helper.make_opsetid("com.microsoft", 1)]
    model: onnx.ModelProto = gs.export_onnx(graph, opset_imports=opsets)
    model.ir_version = surgery.IR_VERSION
    return model


@pytest.mark.parametrize("leading", [[1, 1], [4, 1], [8, 1], [16, 1], [1, 32], [1, 64]])
def test_a_linear_layer_is_the_same_by_whichever_order(leading: list[int]) -> None:
    model = rewritten(linear(leading))
    x = np.random.default_rng(1).standard_normal((*leading, 24), np.float32)
    (stored,) = [tensor for tensor in model.graph.initializer if tensor.name == "W"]
    weight = onnx.numpy_helper.to_array(stored)
    np.testing.assert_allclose(run(model, {"x": x})["y"], x @ weight.T, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "leading, dtype, weight_first",
    [
        ([4, 1], np.float32, False),
        ([16, 1], np.float32, True),
        ([16, 1], np.float16, False),
        ([1, 512], np.float32, False),
    ],
)
def test_the_weight_comes_first_for_a_few_rows_on_the_cpu(
    leading: list[int], dtype: type[np.floating[Any]], weight_first: bool
) -> None:
    (product,) = [
        n for n in rewritten(linear(leading, dtype)).graph.node if n.op_type == "FusedMatMul"
    ]
    assert (product.input[0] == "W") is weight_first
