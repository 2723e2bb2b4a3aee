"""The tensorrt target without TensorRT: ONNX Runtime runs the same graphs, and agrees.

`PYTHONPATH=. python -m tests.graphs.test_target_tensorrt` writes the golden structures
anew. Read their diff: it shows changes of the graphs that users' engines are built from.
"""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import inliner
from onnx.helper import make_node

from snapexport.builder.derive import derive
from snapexport.builder.lint import lint_build
from snapexport.contract.build_directory import Build
from snapexport.graphs.targets import tensorrt_attention, votes
from snapexport.graphs.targets.votes import split_topk
from snapexport.runtime.engine.open_executor import open_executor
from tests.builds import build
from tests.graphs.bodies import calling, function, run
from tests.graphs.test_sinks import EVERY_SHAPE
from tests.oracle import cases, checkpoints
from tests.oracle.cases import Case
from tests.oracle.compare import assert_agrees, assert_agrees_with_plain

pytestmark = pytest.mark.slow

Array = NDArray[Any]
GOLDEN = Path(__file__).parent / "golden"
FP16 = 5e-2
"""Largest difference of fp16 logits between two targets that is still the same answer."""

CASES = (
    # A whole prompt at once; chunks under windows; chunks with softcaps too.
    Case("qwen3", target="tensorrt", prefill_chunk=96, vote="sum-squares", softmax="causal"),
    Case("gemma3", target="tensorrt", prefill_chunk=24),
    Case("gemma2", target="tensorrt", prefill_chunk=24, policy="streaming"),
)


def load(made: Build, name: str) -> onnx.ModelProto:
    return onnx.load(made.directory / f"{name}.onnx", load_external_data=False)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_tensorrt_target_build_agrees_with_the_oracle(case: Case) -> None:
    assert_agrees(case, (25, 96), steps=12)


def test_fused_attention_by_kv_head_agrees_with_the_oracle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In fp32, which the builder composes: as if it had a fused kernel for it."""
    monkeypatch.setattr(tensorrt_attention, "MEASURED_SHAPES", EVERY_SHAPE)
    case = Case("qwen3", target="tensorrt", prefill_chunk=32, L_recent=13)
    graph = onnx.shape_inference.infer_shapes(load(cases.built(case), "prefill")).graph
    attentions = [node for node in graph.node if is_attention(node)]
    assert len(attentions) == case.geometry.slots.num_caches
    queries = {node.input[0] for node in attentions}
    batches = {
        one.type.tensor_type.shape.dim[0].dim_value
        for one in graph.value_info
        if one.name in queries
    }
    assert batches == {2}, "KV heads in the place of the batch"
    assert_agrees(case, (25, 96), steps=12)


def is_attention(node: onnx.NodeProto) -> bool:
    return node.op_type == "Attention"


def test_tensorrt_target_full_cache_agrees_with_plain_transformers() -> None:
    case = Case("gemma2", policy="full", L_max=160, prefill_chunk=160, target="tensorrt")
    assert_agrees_with_plain(cases.built(case), "gemma2", (25, 96), str(case))


@pytest.fixture(scope="module")
def tensorrt_build(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Build:
    out = tmp_path_factory.mktemp("tensorrt") / "b"
    options: dict[str, Any] = {"L_max": 64, "L_recent": 12, "K": 8, "L_obs": 4, "dtype": "fp16"}
    options |= {"prefill_chunk": 32, "batch": 2, "baseline": True}
    return build(checkpoint, out, target="tensorrt", **options)


def test_fp16_tensorrt_target_agrees_with_the_onnxruntime_target(
    tensorrt_build: Build, tmp_path: Path
) -> None:
    """Prefill in two chunks, compression and eight decode steps. 60 tokens don't fit the cache."""
    manifest = tensorrt_build.manifest.model_copy(update={"target": "onnxruntime"})
    other = derive(
        replace(tensorrt_build, manifest=manifest), manifest.geometry, tmp_path / "other"
    )
    assert {node.op_type for node in load(other, "prefill").graph.node} >= {"GroupQueryAttention"}
    assert np.abs(answer(tensorrt_build) - answer(other)).max() < FP16


def answer(made: Build) -> Array:
    """The logits [9, V] of a prompt's end and of eight tokens after it."""
    engine, prompt = open_executor(made, threads=1), cases.prompt(60)
    logits = [engine.prefill_prompt(0, prompt).logits.copy()]
    for step in range(8):
        ids, positions = np.array([step + 5, 0]), np.array([60 + step, 0])
        logits.append(engine.decode(ids, positions, np.array([60, 1])).logits[0].copy())
    return np.stack(logits)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_lint_finds_nothing_in_builds_for_tensorrt(case: Case) -> None:
    made = Build.open(cases.built(case).directory)
    assert lint_build(made, "tensorrt") == []


def test_tensorrt_target_graphs_have_only_standard_operators(tensorrt_build: Build) -> None:
    for name in tensorrt_build.manifest.graphs:
        model = load(tensorrt_build, name)
        assert {node.domain for node in model.graph.node} <= {"", "snapexport"}
        inlined = inliner.inline_local_functions(model)
        assert {node.domain for node in inlined.graph.node} == {""}
        without_weights(inlined)
        onnx.checker.check_model(inlined, full_check=True)


def without_weights(model: onnx.ModelProto) -> None:
    """Zeros in place of external data, which the checker would look for."""
    for tensor in model.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            kind = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.zeros(tensor.dims, kind), tensor.name))


def test_tensorrt_target_attention_has_no_input_that_the_parser_ignores(
    tensorrt_build: Build,
) -> None:
    """It drops valid lengths without a word, and is_causal counts from the upper left."""
    for name in tensorrt_build.manifest.graphs:
        inlined = inliner.inline_local_functions(load(tensorrt_build, name))
        for attention in filter(is_attention, inlined.graph.node):
            assert len(attention.input) <= 4, "queries, keys, values and a mask"
            assert not any(one.i for one in attention.attribute if one.name == "is_causal")


def test_tensorrt_target_layers_share_one_mask(tensorrt_build: Build) -> None:
    for name in ("prefill", "decode"):
        nodes = load(tensorrt_build, name).graph.node
        masks = [node.input[3] for node in nodes if node.op_type == "Attention"]
        assert len(masks) == 2 and len(set(masks)) == 1 and masks[0]


TOPK = """
<domain: "snapexport", opset_import: ["": 24]>
SnapKVSelect <K> (x) => (values, places)
{
  k = Constant <value_ints: ints = @K> ()
  values, places = TopK <axis = -1, largest = %d, sorted = 1> (x, k)
}
"""


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("kind", [np.float32, np.int64])
@pytest.mark.parametrize("k", [4, 5, 8, 9, 21, 32])
def test_topk_in_rounds_equals_one_large_topk_including_ties(
    monkeypatch: pytest.MonkeyPatch, k: int, kind: type, largest: int
) -> None:
    """Top k of 32 numbers with few different values, up to all 32."""
    monkeypatch.setattr(votes, "MOST", 4)
    x = np.random.default_rng(k).integers(-1, 5, (2, 3, 32)).astype(kind)
    whole = calling(onnx.parser.parse_function(TOPK % largest), {"x": x}, K=[k])
    split = onnx.ModelProto.FromString(whole.SerializeToString())
    split_topk(split)
    count = sum(node.op_type == "TopK" for node in split.functions[0].node)
    assert count == -(-k // 4)
    got, want = (run(model, {"x": x}) for model in (split, whole))
    assert all(np.array_equal(got[name], one) for name, one in want.items())


def test_layers_of_different_K_share_the_rounds_of_topk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Budgets by layer: the body is made for the largest K, and right for the smallest."""
    monkeypatch.setattr(votes, "MOST", 4)
    x = np.random.default_rng(0).integers(0, 5, (1, 2, 16)).astype(np.float32)
    model = calling(onnx.parser.parse_function(TOPK % 1), {"x": x}, K=[16])
    small = ["few_values", "few_places"]
    model.graph.node.append(make_node("SnapKVSelect", ["x"], small, domain="snapexport", K=[1]))
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in small)
    want = run(model, {"x": x})
    split_topk(model)
    got = run(model, {"x": x})
    assert all(np.array_equal(got[name], one) for name, one in want.items())


@pytest.mark.parametrize("length", [8, 3000, 9000])
@pytest.mark.parametrize("sharpness", [0.0, 3.0])
def test_select_keeps_the_same_positions_with_topk_in_rounds(length: int, sharpness: float) -> None:
    """sharpness 0: all votes are ties. Lengths at which none, some and all of K are used."""
    rng = np.random.default_rng(length)
    feeds = {
        "query_window": sharpness * rng.standard_normal((1, 4, 3, 8)).astype(np.float32),
        "key": rng.standard_normal((1, 2, 9000, 8)).astype(np.float32),
        "prompt_length": np.array([length]),
    }
    attributes = {"L_sink": 2, "L_recent": 7, "K": [4094], "pool_kernel": [1, 5], "scale": 0.35}
    whole = calling(function("SnapKVSelect", pool_kernel=5), feeds, softcap=0.0, **attributes)
    split = onnx.ModelProto.FromString(whole.SerializeToString())
    split_topk(split)
    sizes = {a.name: a.ints[0] for a in split.graph.node[0].attribute if a.ints}
    assert sizes["K_per_round"] == 2047
    (got,), (want,) = (run(model, feeds).values() for model in (split, whole))
    assert np.array_equal(got, want)


def test_small_topk_is_not_split_into_rounds(tensorrt_build: Build) -> None:
    (body,) = [f for f in load(tensorrt_build, "compress").functions if f.name == "SnapKVSelect"]
    assert [node.op_type for node in body.node].count("TopK") == 2


REAL: dict[str, dict[str, Any]] = {
    # Heads as config.json of Llama-3.1-8B and of Qwen3-8B have them; the rest is tiny.
    "llama": {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128},
    "qwen3": {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128},
}


def real_build(architecture: str, directory: Path) -> Build:
    """131,072 tokens in a cache of 8,192 slots: K is 4,094, more than one TopK gives."""
    small = {"hidden_size": 32, "intermediate_size": 32, "max_position_embeddings": 131072}
    model = checkpoints.make(architecture, directory / "model", **REAL[architecture] | small)
    options: dict[str, Any] = {"L_max": 131072, "kv_budget": 8192, "dtype": "bf16"}
    options["decode_batches"] = ()
    return build(model, directory / "b", target="tensorrt", baseline=True, **options)


def structure(made: Build) -> dict[str, Any]:
    """Operators, inputs and outputs of the graphs; function bodies apart."""
    return {
        name: {
            "operators": counts(load(made, name).graph.node),
            "bodies": {f.name: counts(f.node) for f in load(made, name).functions},
            "inputs": {spec.name: f"{spec.dtype} {spec.shape}" for spec in entry.inputs},
            "outputs": {spec.name: f"{spec.dtype} {spec.shape}" for spec in entry.outputs},
        }
        for name, entry in sorted(made.manifest.graphs.items())
    }


def counts(nodes: Any) -> dict[str, int]:
    return dict(sorted(Counter(node.op_type for node in nodes).items()))


@pytest.mark.parametrize("architecture", REAL)
def test_graphs_of_real_heads_at_131072_tokens_equal_the_golden_structure(
    architecture: str, tmp_path: Path
) -> None:
    made = real_build(architecture, tmp_path)
    assert [layer.K for layer in made.manifest.geometry.layers] == [4094, 4094]
    assert lint_build(made, "tensorrt") == []
    golden = json.loads((GOLDEN / f"tensorrt_{architecture}.json").read_text())
    assert structure(made) == golden


def renew() -> None:
    """Write the golden structures of the present builds."""
    import tempfile

    for architecture in REAL:
        with tempfile.TemporaryDirectory() as directory:
            text = json.dumps(structure(real_build(architecture, Path(directory))), indent=1)
        (GOLDEN / f"tensorrt_{architecture}.json").write_text(text + "\n")


if __name__ == "__main__":
    renew()
