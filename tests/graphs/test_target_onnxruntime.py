"""Fast operators of the onnxruntime target, against plain operators and numbers."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from numpy.typing import NDArray

from snapexport.builder.graph_files import Traces
from snapexport.contract import names
from snapexport.contract.build_directory import Build
from snapexport.graphs import surgery
from snapexport.graphs.method import Recipe
from snapexport.graphs.passes.base import int64s, node
from snapexport.graphs.targets import standard_attention
from snapexport.graphs.targets.fewer_nodes import FewerReshapes
from snapexport.graphs.targets.weights import FusedMatMul
from tests.graphs.bodies import Arrays, rewritten, run


@pytest.mark.parametrize("prompt_length", [1, 8, 20, 37, 63, 64])
def test_onnxruntime_vote_over_the_prompt_equals_one_over_the_whole_cache(
    tiny_build: Build, prompt_length: int
) -> None:
    """Keys beyond the prompt, as a longer prompt left them, are 1000 times larger."""
    trace, geometry = Traces.of(tiny_build).models["prefill"], tiny_build.manifest.geometry
    ours, plain = (
        surgery.finish("compress", trace, Recipe(geometry, t)) for t in ("onnxruntime", "portable")
    )
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


def test_decode_attention_gives_the_same_whether_query_heads_are_folded(
    tiny_build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are folded where a KV head's keys are too many for the processor's cache."""
    trace = Traces.of(tiny_build).models["decode"]
    recipe = Recipe(tiny_build.manifest.geometry, "onnxruntime")
    by_head = surgery.finish("decode", trace, recipe)
    monkeypatch.setattr(standard_attention, "_MIB", 0)
    folded = surgery.finish("decode", trace, recipe)
    assert [queries_of(model) for model in (by_head, folded)] == ["Mul", "Reshape"]
    copied = Path(shutil.copytree(tiny_build.directory, tmp_path / "copy"))
    for model, name in ((by_head, "by_head.onnx"), (folded, "folded.onnx")):
        onnx.save(model, copied / name)
    inputs = decode_inputs(by_head, position=40)
    found, expected = (run(copied / f"{name}.onnx", inputs) for name in ("folded", "by_head"))
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5, err_msg=name)


def queries_of(model: onnx.ModelProto) -> str:
    """The operator that makes the queries of the first Attention."""
    attention = next(one for one in model.graph.node if one.op_type == "Attention")
    return next(one.op_type for one in model.graph.node if attention.input[0] in one.output)


@pytest.mark.parametrize(
    ("prompt_length", "read"), [(1, 64), (63, 64), (64, 256), (255, 256), (256, 1024), (2000, 1024)]
)
def test_step_reads_the_first_slots_while_no_others_are_valid(
    tiny_build: Build, tmp_path: Path, prompt_length: int, read: int, monkeypatch: Any
) -> None:
    """The other slots hold NaN. Logits stay the same bit by bit."""
    geometry = tiny_build.manifest.geometry
    slots = replace(geometry.slots, K=(1008, 112))
    recipe = Recipe(replace(geometry, L_max=2048, slots=slots), "onnxruntime")
    trace = Traces.of(tiny_build).models["decode"]
    ours = surgery.finish("decode", trace, recipe)
    monkeypatch.setitem(surgery.MODEL_PASSES, "onnxruntime", ())
    plain = surgery.finish("decode", trace, recipe)
    copied = Path(shutil.copytree(tiny_build.directory, tmp_path / "copy"))
    for model, name in ((ours, "ours.onnx"), (plain, "plain.onnx")):
        onnx.save(model, copied / name)
        onnx.checker.check_model(copied / name, full_check=True)
    inputs = decode_inputs(ours, position=prompt_length)
    expected = run(copied / "plain.onnx", inputs)["logits"]
    for name, cache in inputs.items():
        if names.is_past(name):
            cache[:, :, read if cache.shape[2] == 1024 else 128 :] = np.nan
    found = run(copied / "ours.onnx", inputs)["logits"]
    np.testing.assert_array_equal(found, expected)


def decode_inputs(model: onnx.ModelProto, position: int) -> Arrays:
    """Random caches behind a prompt of `position` tokens, and a token for each batch slot."""
    rng, inputs = np.random.default_rng(0), dict[str, NDArray[Any]]()
    for value in model.graph.input:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            inputs[value.name] = rng.standard_normal(shape, np.float32)
        else:
            tokens = value.name == names.INPUT_IDS
            inputs[value.name] = np.full(shape, position % 64 if tokens else position)
    return inputs


def linear(
    leading: list[int], dtype: type[np.floating[Any]] = np.float32, width: int = 24
) -> gs.Graph:
    """x [*leading,width] @ Transpose(W [40,width])."""
    weight = gs.Constant("W", np.random.default_rng(0).standard_normal((40, width)).astype(dtype))
    x, y = gs.Variable("x", dtype, [*leading, width]), gs.Variable("y", dtype, [*leading, 40])
    transposed = gs.Variable("Wt", dtype, [width, 40])
    nodes = [
        gs.Node("Transpose", attrs={"perm": [1, 0]}, inputs=[weight], outputs=[transposed]),
        gs.Node("MatMul", inputs=[x, transposed], outputs=[y]),
    ]
    return gs.Graph(nodes, inputs=[x], outputs=[y], opset=24)


@pytest.mark.parametrize("width", [24, 768])
@pytest.mark.parametrize("leading", [[1, 1], [4, 1], [2, 3], [8, 1], [16, 1], [1, 32], [1, 64]])
def test_fused_matmul_computes_the_linear_layer_in_either_order(
    leading: list[int], width: int
) -> None:
    model = rewritten(linear(leading, width=width), FusedMatMul())
    x = np.random.default_rng(1).standard_normal((*leading, width), np.float32)
    (stored,) = [tensor for tensor in model.graph.initializer if tensor.name == "W"]
    weight = onnx.numpy_helper.to_array(stored)
    np.testing.assert_allclose(run(model, {"x": x})["y"], x @ weight.T, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "leading, width, dtype, weight_first",
    [
        ([1, 1], 768, np.float32, False),
        ([4, 1], 24, np.float32, False),
        ([4, 1], 768, np.float32, True),
        ([16, 1], 24, np.float32, True),
        ([16, 1], 768, np.float16, False),
        ([1, 512], 768, np.float32, False),
    ],
)
def test_fused_matmul_puts_the_weight_first_only_for_a_few_fp32_rows(
    leading: list[int], width: int, dtype: type[np.floating[Any]], weight_first: bool
) -> None:
    (product,) = [
        n
        for n in rewritten(linear(leading, dtype, width), FusedMatMul()).graph.node
        if n.op_type == "FusedMatMul"
    ]
    assert (product.input[0] == "W") is weight_first


def heads_and_back(tokens: int) -> gs.Graph:
    """x [2,tokens,12] -> [2,tokens,3,4] -> [2,3,tokens,4] -> [2,1,3*tokens,4], negative."""
    x = gs.Variable("x", np.float32, [2, tokens, 12])
    heads = gs.Variable("heads", np.float32, [2, tokens, 3, 4])
    y = gs.Variable("y", np.float32, [2, 1, 3 * tokens, 4])
    graph = gs.Graph(inputs=[x], outputs=[y], opset=24)
    node(graph, "Reshape", [x, int64s(graph, 2, tokens, 3, 4)], [heads])
    moved = node(graph, "Transpose", [heads], perm=[0, 2, 1, 3])
    folded = node(graph, "Reshape", [*moved, int64s(graph, 2, 1, -1, 4)])
    node(graph, "Neg", folded, [y])
    return graph


@pytest.mark.parametrize(
    "tokens, left", [(1, ["Reshape", "Neg"]), (5, ["Reshape", "Transpose", "Reshape", "Neg"])]
)
def test_reshapes_and_transposes_that_move_nothing_become_one_reshape(
    tokens: int, left: list[str]
) -> None:
    model = rewritten(heads_and_back(tokens), FewerReshapes())
    assert [node.op_type for node in model.graph.node] == left
    x = np.random.default_rng(0).standard_normal((2, tokens, 12), np.float32)
    expected = -x.reshape(2, tokens, 3, 4).transpose(0, 2, 1, 3).reshape(2, 1, -1, 4)
    np.testing.assert_array_equal(run(model, {"x": x})["y"], expected)


def test_transpose_of_nothing_stays() -> None:
    """A Reshape would take its size of 0 for another axis's."""
    graph = gs.Graph(inputs=[gs.Variable("x", np.float32, [1, 5, 0])], opset=24)
    y = gs.Variable("y", np.float32, [0, 5, 1])
    graph.outputs = node(graph, "Transpose", graph.inputs, [y], perm=[2, 1, 0])
    model = rewritten(graph, FewerReshapes())
    assert run(model, {"x": np.zeros((1, 5, 0), np.float32)})["y"].shape == (0, 5, 1)


def test_reshape_that_copies_a_size_is_not_merged() -> None:
    graph = heads_and_back(1)
    last = next(n for n in reversed(graph.nodes) if n.op == "Reshape")
    last.inputs[1] = int64s(graph, 0, 1, -1, 4)
    operators = [n.op_type for n in rewritten(graph, FewerReshapes()).graph.node]
    assert operators == ["Reshape", "Reshape", "Neg"]
