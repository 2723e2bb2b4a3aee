"""The lint finds every planted fault, and nothing in the sound graph."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto
from onnx.helper import make_attribute, make_node, make_opsetid, make_tensor_value_info

from snapexport.build import build
from snapexport.build.graph_files import Traces
from snapexport.contract.build_directory import Build
from snapexport.graphs import surgery
from snapexport.graphs.functions.vote import STAGES
from snapexport.graphs.lint import lint_file, lint_model, table_for
from snapexport.graphs.lint.rules import model as whole

Model = onnx.ModelProto


@pytest.fixture(scope="module")
def tensorrt_build(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Build:
    out = tmp_path_factory.mktemp("lint") / "b"
    options: dict[str, Any] = {"L_max": 64, "L_recent": 12, "K": 8, "L_obs": 4, "batch": 2}
    return build(checkpoint, out, target="tensorrt", prefill_chunk=24, baseline=True, **options)


def load(tensorrt_build: Build, name: str) -> Model:
    return onnx.load(tensorrt_build.directory / f"{name}.onnx", load_external_data=False)


def first(model: Model, operator: str) -> NodeProto:
    """The first such node, in a function's body if the graph has none."""
    nodes = [*model.graph.node, *(node for f in model.functions for node in f.node)]
    return next(node for node in nodes if node.op_type == operator)


def change(operator: str, **attributes: Any) -> Callable[[Model], None]:
    """Set attributes of the first node of a kind."""

    return lambda model: change_node(first(model, operator), **attributes)


def change_node(node: NodeProto, **attributes: Any) -> None:
    kept = [a for a in node.attribute if a.name not in attributes]
    del node.attribute[:]
    node.attribute.extend(kept + [make_attribute(k, v) for k, v in attributes.items()])


def feed(operator: str, index: int, name: str) -> Callable[[Model], None]:
    """Connect an input of the first node of a kind to another tensor."""

    def plant(model: Model) -> None:
        node = first(model, operator)
        node.input.extend([""] * (index + 1 - len(node.input)))
        node.input[index] = name

    return plant


def append(*nodes: NodeProto, **initializers: Any) -> Callable[[Model], None]:
    """Add nodes, and what they read."""

    def plant(model: Model) -> None:
        model.graph.node.extend(nodes)
        tensors = [onnx.numpy_helper.from_array(v, k) for k, v in initializers.items()]
        model.graph.initializer.extend(tensors)

    return plant


def drop_output(model: Model) -> None:
    del model.graph.output[1]


def open_length(model: Model) -> None:
    cache = next(i for i in model.graph.input if i.name.startswith("past"))
    cache.type.tensor_type.shape.dim[2].dim_param = "length"


def cache_after_a_node(model: Model) -> None:
    scatter = first(model, "TensorScatter")
    model.graph.node.insert(0, make_node("Identity", [scatter.input[0]], ["moved"]))
    scatter.input[0] = "moved"


def next_opset(model: Model) -> None:
    for owner in (model, *model.functions):
        for one in owner.opset_import:
            if not one.domain:
                one.version = 25


def vendor_operator(model: Model) -> None:
    model.opset_import.append(make_opsetid("com.microsoft", 1))
    append(make_node("FusedMatMul", ["x", "x"], ["y"], domain="com.microsoft"), x=BIG)(model)


def bodiless(model: Model) -> None:
    del model.functions[:]


def unknown_topk(model: Model) -> None:
    model.graph.input.append(make_tensor_value_info("k", TensorProto.INT64, [1]))
    append(make_node("TopK", ["past_key_values.0.key", "k"], ["best", "places"]))(model)


BIG = np.arange(5000, dtype=np.float32)
MASK3 = np.ones((2, 1, 20), bool)
HALF = append(half=np.zeros((2, 2, 1, 16), np.float16))
ZEROS = np.zeros(2, np.int64)
ROWS = np.zeros((2, 4, 1, 16), np.float32)

# Faults that also break ONNX's own rules have the rule "onnx" too.
FAULTS: dict[str, tuple[str, Callable[[Model], object], set[str]]] = {
    "another vendor's operator": (
        "decode",
        vendor_operator,
        {"operator"},
    ),
    "an operator of no known domain": (
        "decode",
        append(make_node("Mine", ["x"], ["y"], domain="mine"), x=BIG),
        {"operator", "onnx"},
    ),
    "a function without a body": ("decode", bodiless, {"operator"}),
    "an operator the parser lacks": (
        "decode",
        append(make_node("Unique", ["x"], ["y"]), x=BIG),
        {"operator"},
    ),
    "int64 where there are floats alone": (
        "decode",
        append(make_node("Clip", ["position_ids"], ["y"])),
        {"type"},
    ),
    "a cast to double": (
        "decode",
        append(make_node("Cast", ["x"], ["y"], to=TensorProto.DOUBLE), x=BIG),
        {"type"},
    ),
    "a past in Attention": (
        "decode",
        append(
            make_node("Attention", ["q", "q", "q", "", "q", "q"], ["y"], scale=1.0),
            q=ROWS,
        ),
        {"attention-input"},
    ),
    "a valid length": ("decode", feed("Attention", 6, "prompt_length"), {"attention-input"}),
    "a cache from Attention": (
        "decode",
        append(make_node("Attention", ["q", "q", "q"], ["y", "k", "v"], scale=1.0), q=ROWS),
        {"attention-output", "onnx"},
    ),
    "a softcap": ("decode", change("Attention", softcap=30.0), {"attention-attribute"}),
    "the softmax's precision": (
        "decode",
        change("Attention", softmax_precision=1),
        {"attention-attribute"},
    ),
    "packed heads": (
        "decode",
        append(
            make_node(
                "Attention", ["x", "x", "x"], ["y"], q_num_heads=2, kv_num_heads=2, scale=1.0
            ),
            x=np.zeros((1, 4, 32), np.float32),
        ),
        {"attention-rank"},
    ),
    "a flat mask": (
        "decode",
        append(make_node("Attention", ["q", "q", "q", "m"], ["y"], scale=1.0), q=ROWS, m=MASK3),
        {"attention-mask", "attention-mask-rank"},
    ),
    "a mask of another type": (
        "decode",
        append(
            make_node("Attention", ["q", "q", "q", "m"], ["y"], scale=1.0),
            q=ROWS,
            m=np.zeros((2, 1, 1, 1), np.float16),
        ),
        {"attention-mask"},
    ),
    "a mask beside the causal order": (
        "prefill",
        append(
            make_node("Attention", ["q", "q", "q", "m"], ["y"], is_causal=1, scale=1.0),
            q=ROWS,
            m=np.ones((2, 1, 1, 1), bool),
        ),
        {"attention-causal"},
    ),
    "a causal order in decode": (
        "decode",
        append(
            make_node("Attention", ["q", "present.0.key", "present.0.value"], ["y"], is_causal=1),
            q=ROWS,
        ),
        {"attention-causal"},
    ),
    "an fp64 input": (
        "decode",
        lambda model: model.graph.input.append(
            make_tensor_value_info("wide", TensorProto.DOUBLE, [1])
        ),
        {"fp64"},
    ),
    "a slice up to an input": (
        "decode",
        append(
            make_node("Slice", ["ramp", "start", "prompt_length"], ["cut"]), start=ZEROS, ramp=BIG
        ),
        {"computed-size"},
    ),
    "9 dimensions": (
        "decode",
        append(make_node("Identity", ["deep"], ["y"]), deep=np.zeros([1] * 9, np.float32)),
        {"rank"},
    ),
    "keys that two nodes scale": (
        "decode",
        append(
            make_node("Attention", ["q", "k", "k"], ["y"]),
            make_node("Attention", ["p", "k", "k"], ["z"]),
            p=ROWS,
            q=ROWS,
            k=ROWS,
        ),
        {"attention-shared"},
    ),
    "kv_lengths": (
        "decode",
        append(
            make_node("TRT_Attention", ["q", "q", "q", "", "", "", "", "position_ids"], ["y"]),
            q=ROWS,
        ),
        {"attention-lengths"},
    ),
    "a circular scatter": ("decode", change("TensorScatter", mode="circular"), {"scatter-mode"}),
    "a scatter along the heads": ("decode", change("TensorScatter", axis=1), {"scatter-axis"}),
    "a scatter into three dimensions": (
        "decode",
        append(
            make_node("TensorScatter", ["x", "x"], ["y"], axis=-2),
            x=np.zeros((1, 4, 16), np.float32),
        ),
        {"scatter-rank", "scatter-io"},
    ),
    "an update of another type": (
        "decode",
        lambda model: [plant(model) for plant in (HALF, feed("TensorScatter", 1, "half"))],
        {"scatter-type"},
    ),
    "a cache that is no input": ("decode", cache_after_a_node, {"scatter-io"}),
    "a cache that is no output": ("decode", drop_output, {"scatter-io"}),
    "a cache of open length": ("decode", open_length, {"scatter-shape", "input-shape"}),
    "a large TopK": (
        "decode",
        append(
            make_node("TopK", ["x", "k"], ["best", "places"]),
            x=BIG,
            k=np.array([3841]),
        ),
        {"topk-size"},
    ),
    "a TopK of unknown size": ("compress", unknown_topk, {"topk-size"}),
    "an unsorted TopK in a body": ("compress", change("TopK", sorted=0), {"topk-sorted"}),
    "a large TopK in a body": (
        "compress",
        change("SnapKVSelect", K=[3841]),
        {"topk-size", "onnx"},
    ),
    "axes that are computed": (
        "compress",
        append(make_node("ReduceSum", ["past_key_values.0.key", "prompt_length"], ["y"])),
        {"constant-input", "onnx"},
    ),
    "pooling in one dimension, in a body": (
        "compress",
        change("AveragePool", kernel_shape=[3]),
        {"pool-rank", "onnx"},
    ),
    "dilated pooling": ("compress", change("AveragePool", dilations=[1, 2]), {"pool-dilation"}),
    "a scatter that adds": (
        "decode",
        append(
            make_node("ScatterND", ["x", "i", "u"], ["y"], reduction="add"),
            x=BIG,
            i=np.array([[0]]),
            u=BIG[:1],
        ),
        {"scatter-reduction"},
    ),
    "a text": (
        "decode",
        append(make_node("Constant", [], ["y"], value_string="text")),
        {"constant", "type"},
    ),
    "int32 positions": (
        "decode",
        append(
            make_node("RotaryEmbedding", ["q", "c", "c", "p"], ["y"]),
            q=ROWS,
            c=np.zeros((8, 8), np.float32),
            p=np.zeros((2, 1), np.int32),
        ),
        {"rotary-positions"},
    ),
    "an asymmetric quantization": (
        "decode",
        append(
            make_node("DequantizeLinear", ["x", "s", "z"], ["y"]),
            x=np.zeros(4, np.int8),
            s=np.float32(1),
            z=np.int8(3),
        ),
        {"zero-point"},
    ),
    "a second output": (
        "decode",
        append(make_node("LayerNormalization", ["x", "x"], ["y", "mean"]), x=BIG),
        {"first-output"},
    ),
    "an opset that is too new": ("decode", next_opset, {"opset"}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_lint_finds_a_planted_fault(tensorrt_build: Build, fault: str) -> None:
    graph, plant, rules = FAULTS[fault]
    model = load(tensorrt_build, graph)
    assert lint_model(model, graph, table_for(None)) == []
    plant(model)
    findings = lint_model(model, graph, table_for(None))
    assert {finding.rule for finding in findings} == rules
    for finding in findings:
        texts = (finding.node, finding.message, finding.way_out, finding.source)
        assert finding.graph == graph and all(texts)


@pytest.mark.parametrize("names", list(product(*STAGES.values())), ids="-".join)
def test_lint_finds_nothing_in_any_combination_of_vote_options(
    tensorrt_build: Build, names: tuple[str, ...]
) -> None:
    options: dict[str, Any] = dict(zip(STAGES, names, strict=True))
    geometry = replace(tensorrt_build.manifest.geometry, **options)
    model = surgery.compress(Traces.of(tensorrt_build).prefill, geometry, "tensorrt")
    assert lint_model(model, "compress", table_for(None)) == []


def test_lint_accepts_a_large_vote_only_when_split_into_rounds(tensorrt_build: Build) -> None:
    trace, geometry = (
        Traces.of(tensorrt_build).prefill,
        replace(tensorrt_build.manifest.geometry, L_max=8192, K=3841),
    )
    whole_vote = surgery.compress(trace, geometry, "portable")
    assert {one.rule for one in lint_model(whole_vote, "c", table_for(None))} == {"topk-size"}
    in_rounds = surgery.compress(trace, geometry, "tensorrt")
    assert lint_model(in_rounds, "c", table_for(None)) == []


def test_lint_finding_in_a_function_body_names_the_function(tensorrt_build: Build) -> None:
    model = load(tensorrt_build, "compress")
    change("TopK", sorted=0)(model)
    findings = lint_model(model, "compress", table_for(None))
    # One for each of the two calls.
    assert [one.operator for one in findings] == ["TopK", "TopK"]
    assert all(one.node.startswith("SnapKVSelect.") for one in findings)


def test_lint_reports_a_file_over_the_size_limit(
    tensorrt_build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tensorrt_build.directory / "decode.onnx"
    monkeypatch.setattr(whole, "MOST_BYTES", path.stat().st_size - 1)
    (finding,) = lint_file(path, "decode", table_for(None))
    assert finding.rule == "model-size"
