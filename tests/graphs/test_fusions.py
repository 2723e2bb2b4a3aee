"""Fused operators, against those in their place."""

from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
import pytest

from snapexport.graphs.fusions.residual_norm import SkipNorm
from snapexport.graphs.fusions.silu import Silu
from snapexport.graphs.passes.base import node
from tests.graphs.bodies import rewritten, run


def normed_sum(shape: list[int], dtype: type[np.floating[Any]] = np.float32) -> gs.Graph:
    """x [2,3,8] + residual -> its norm, and 2 * the sum."""
    x, residual = gs.Variable("x", dtype, [2, 3, 8]), gs.Variable("residual", dtype, shape)
    total = gs.Variable("total", dtype, [2, 3, 8])
    outputs = [gs.Variable(name, dtype, [2, 3, 8]) for name in ("normed", "twice")]
    graph = gs.Graph(inputs=[x, residual], outputs=outputs, opset=24)
    scale = gs.Constant("scale", np.linspace(0.5, 2, 8).astype(dtype))
    node(graph, "Add", [x, residual], [total])
    node(graph, "RMSNormalization", [total, scale], outputs[:1], axis=-1, epsilon=1e-3)
    node(graph, "Add", [total, total], outputs[1:])
    return graph


@pytest.mark.parametrize("dtype, size", [(np.float32, 1), (np.float16, 100)])
def test_sum_and_its_norm_become_one_operator(dtype: type[np.floating[Any]], size: float) -> None:
    """In fp16 squares of 400 would overflow, were they not added up in fp32."""
    model = rewritten(normed_sum([2, 3, 8], dtype), SkipNorm())
    assert [n.op_type for n in model.graph.node] == ["SkipSimplifiedLayerNormalization", "Add"]
    rng = np.random.default_rng(0)
    x, residual = (size * rng.standard_normal((2, 2, 3, 8))).astype(dtype)
    found = run(model, {"x": x, "residual": residual})
    total = x.astype(np.float32) + residual
    rms = np.sqrt((total**2).mean(-1, keepdims=True) + 1e-3)
    tolerance = 4 * np.finfo(dtype).eps
    expected = total / rms * np.linspace(0.5, 2, 8)
    np.testing.assert_allclose(found["normed"], expected, rtol=tolerance, atol=tolerance)
    np.testing.assert_array_equal(found["twice"], 2 * (x + residual))


def test_broadcast_sum_keeps_its_operators() -> None:
    model = rewritten(normed_sum([8]), SkipNorm())
    assert [n.op_type for n in model.graph.node] == ["Add", "RMSNormalization", "Add"]


def gated(sigmoid_of: str = "x", *, read_again: bool = False) -> gs.Graph:
    """x * sigmoid(x or other), and if asked the sigmoid itself."""
    names = ("x", "other", "y", "gate")
    x, other, y, gate = (gs.Variable(name, np.float32, [2, 40]) for name in names)
    graph = gs.Graph(inputs=[x, other], outputs=[y, gate] if read_again else [y], opset=24)
    node(graph, "Sigmoid", [{"x": x, "other": other}[sigmoid_of]], [gate])
    node(graph, "Mul", [gate, x], [y])
    return graph


def test_silu_becomes_one_operator_with_the_same_bits() -> None:
    x = np.random.default_rng(0).standard_normal((2, 40), np.float32) * 8
    feeds = {"x": x, "other": x}
    model = rewritten(gated(), Silu())
    assert [n.op_type for n in model.graph.node] == ["QuickGelu"]
    plain = rewritten(gated("other"), Silu())
    np.testing.assert_array_equal(run(model, feeds)["y"], run(plain, feeds)["y"])


@pytest.mark.parametrize("graph", [gated("other"), gated(read_again=True)])
def test_other_gates_keep_their_sigmoid(graph: gs.Graph) -> None:
    model = rewritten(graph, Silu())
    assert [node.op_type for node in model.graph.node] == ["Sigmoid", "Mul"]
