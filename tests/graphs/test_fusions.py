"""Fused operators, against those in their place."""

from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
import pytest

from snapexport.graphs.fusions.residual_norm import SkipNorm
from snapexport.graphs.fusions.rotation import OneRotation
from snapexport.graphs.fusions.silu import Silu
from snapexport.graphs.passes.base import int64s, node
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


HEADS, WIDTH, BATCH = (4, 2, 2), 8, 3


def rotated(tokens: int = 1, *, other_table: bool = False) -> gs.Graph:
    """x [B,C,64] -> q [B,4,C,8] and k [B,2,C,8], rotated, and v [B,2,C,8]."""
    x = gs.Variable("x", np.float32, [BATCH, tokens, sum(HEADS) * WIDTH])
    tables = [gs.Variable(name, np.float32, [BATCH, tokens, WIDTH // 2]) for name in "cst"]
    graph = gs.Graph(inputs=[x, *tables], opset=24)
    outs = [
        gs.Variable(f"{name}.split", np.float32, [BATCH, tokens, heads * WIDTH])
        for name, heads in zip("qkv", HEADS, strict=True)
    ]
    node(graph, "Split", [x, int64s(graph, *(n * WIDTH for n in HEADS))], outs, axis=-1)
    for name, out, heads in zip("qkv", outs, HEADS, strict=True):
        states = gs.Variable(f"{name}.heads", np.float32, [BATCH, heads, tokens, WIDTH])
        node(graph, "Reshape", [out, int64s(graph, *states.shape)], [states])
        made = gs.Variable(name, np.float32, states.shape)
        turns = tables[:2] if name == "q" or not other_table else tables[:3:2]
        if name == "v":
            node(graph, "Identity", [states], [made])
        else:
            node(graph, "RotaryEmbedding", [states, *turns], [made])
        graph.outputs.append(made)
    return graph


def test_q_and_k_are_rotated_at_once_with_the_same_bits() -> None:
    fused, plain = rewritten(rotated(), OneRotation()), rewritten(rotated(), Silu())
    for model, count in ((fused, 1), (plain, 2)):
        assert [n.op_type for n in model.graph.node].count("RotaryEmbedding") == count
    rng = np.random.default_rng(0)
    shapes = {"x": (BATCH, 1, 64), **dict.fromkeys("cst", (BATCH, 1, WIDTH // 2))}
    feeds = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    found, expected = run(fused, feeds), run(plain, feeds)
    for name in "qkv":
        np.testing.assert_array_equal(found[name], expected[name], name)


@pytest.mark.parametrize("graph", [rotated(2), rotated(other_table=True)])
def test_several_tokens_and_other_tables_keep_their_rotations(graph: gs.Graph) -> None:
    operators = [n.op_type for n in rewritten(graph, OneRotation()).graph.node]
    assert operators.count("RotaryEmbedding") == 2
