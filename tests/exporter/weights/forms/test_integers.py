"""Weights as integers: their layout against ONNX Runtime's, and builds against transformers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info
from onnx.numpy_helper import from_array
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from snapexport.cli.app import main
from snapexport.contract.build_directory import Build
from snapexport.errors import UserError
from snapexport.exporter import trace as tracing
from snapexport.exporter.model.probe import look
from snapexport.exporter.read.families import family_of
from snapexport.exporter.trace.link import Traced
from snapexport.exporter.trace.marking import Marking
from snapexport.exporter.weights.forms import parts
from snapexport.exporter.weights.forms.choice import INT4, Rounded
from snapexport.exporter.weights.forms.integers import Form
from snapexport.files.safetensors import TensorSpan
from snapexport.graphs.targets.experts import ComposedExperts, MoE
from snapexport.runtime.requests.llm import LLM
from tests.builds import build
from tests.exporter.weights.test_weights import weights_of
from tests.graphs import bodies
from tests.graphs import test_experts as experts
from tests.oracle import checkpoints
from tests.oracle.families import config_of

pytestmark = pytest.mark.slow

Array = NDArray[np.float32]


PLAIN = Form(4, 32, 8)


def quantize(rows: Array) -> tuple[NDArray[np.uint8], Array]:
    """float32 [n,K] -> integers around 8 [n,K/32,16] and scales [n,K/32], to the nearest."""
    padded = np.pad(rows, ((0, 0), (0, -rows.shape[1] % PLAIN.block)))
    q, scales = plainly_rounded(padded.reshape(len(rows), -1, PLAIN.block), PLAIN)
    return q[..., 0::2] | q[..., 1::2] << 4, scales


def plainly_rounded(rows: Array, form: Form) -> tuple[NDArray[np.uint8], Array]:
    """Blocks around the middle: the value of largest magnitude becomes the lowest integer."""
    low, high = rows.min(-1), rows.max(-1)
    scales = np.where(-low > high, low, high) / -form.middle
    steps = np.divide(rows, scales[..., None], where=scales[..., None] != 0, out=rows * 0)
    return np.clip(np.rint(steps) + form.middle, 0, 2 * form.middle - 1).astype(np.uint8), scales


def dequantized(
    packed: NDArray[np.uint8], scales: Array, columns: int, zeros: Array | int = 8
) -> Array:
    """The layout's definition of 4 bits, element by element."""
    q = np.stack([packed & 15, packed >> 4], axis=-1).reshape(*scales.shape, -1)
    values = (q.astype(np.float32) - np.asarray(zeros)[..., None]) * scales[..., None]
    return values.reshape(len(packed), -1)[:, :columns]


def weight_of(stored: dict[str, torch.Tensor], name: str, columns: int) -> torch.Tensor:
    """A matrix of a build with zero points, in 4 or 8 bits."""
    scales, zeros = stored[f"{name}.scales"].numpy(), stored[f"{name}.zeros"].numpy()
    if f"{name}.int4" in stored:
        unpacked = np.stack([zeros & 15, zeros >> 4], axis=-1).reshape(len(zeros), -1)
        of_blocks = unpacked[:, : scales.shape[1]].astype(np.float32)
        values = dequantized(stored[f"{name}.int4"].numpy(), scales, columns, of_blocks)
    else:
        q = stored[f"{name}.int8"].numpy().astype(np.float32)
        values = ((q - zeros[..., None]) * scales[..., None]).reshape(len(q), -1)[:, :columns]
    return torch.from_numpy(values).contiguous()


def read_by_onnxruntime(packed: NDArray[np.uint8], scales: Array, columns: int) -> Array:
    """MatMulNBits of the unit matrix."""
    rows = len(packed)
    product = make_node(
        "MatMulNBits",
        ["x", "packed", "scales"],
        ["y"],
        domain="com.microsoft",
        **{"N": rows, "K": columns, "bits": 4, "block_size": PLAIN.block},
    )
    graph = make_graph(
        [product],
        "unit",
        [make_tensor_value_info("x", onnx.TensorProto.FLOAT, [columns, columns])],
        [make_tensor_value_info("y", onnx.TensorProto.FLOAT, [columns, rows])],
        [from_array(packed, "packed"), from_array(scales, "scales")],
    )
    opsets = [make_opsetid("", 24), make_opsetid("com.microsoft", 1)]
    model = make_model(graph, opset_imports=opsets, ir_version=12)
    return bodies.run(model, {"x": np.eye(columns, dtype=np.float32)})["y"].T


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.integers(1, 100), st.integers(0, 2**32 - 1))
def test_int4_layout_is_read_by_onnxruntime_as_defined(rows: int, columns: int, seed: int) -> None:
    weights = np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)
    packed, scales = quantize(weights)
    expected = dequantized(packed, scales, columns)
    np.testing.assert_allclose(read_by_onnxruntime(packed, scales, columns), expected, atol=1e-6)
    step = np.repeat(np.abs(scales), PLAIN.block, axis=1)[:, :columns]
    assert (np.abs(expected - weights) <= step * (1 + 1e-5)).all()
    assert np.abs(expected - weights).mean() <= step.mean() / 2


@pytest.fixture(scope="module")
def int4_build(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Build:
    out = tmp_path_factory.mktemp("int4") / "build"
    return build(checkpoint, out, L_max=64, policy="full", prefill_chunk=32, weights="int4")


def test_int4_build_equals_transformers_with_the_rounded_weights(
    checkpoint: Path, int4_build: Build, tmp_path: Path
) -> None:
    """transformers, given the weights as they are stored, agrees up to 8-bit activations."""
    prompt = np.random.default_rng(0).integers(3, 250, 50).tolist()
    rounded = tmp_path / "rounded"
    rounded.mkdir()
    (rounded / "config.json").write_bytes((checkpoint / "config.json").read_bytes())
    original = load_file(checkpoint / "model.safetensors")
    save_file(original | stored(int4_build, original), rounded / "model.safetensors")
    engine = LLM(int4_build.directory).executor
    got = engine.prefill_prompt(0, prompt).logits.copy()
    noise = np.abs(got - logits(rounded, prompt)).mean()
    assert noise < 0.25 * np.abs(got - logits(checkpoint, prompt)).mean()
    assert noise < 0.05 * got.std()


def stored(made: Build, original: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors of the build's int4 file, as numbers."""
    found = weights_of(made)
    names = {parts.whole(part) for part in found if parts.whole(part) != part}
    assert names == {n for n in original if "norm" not in n}
    return {name: weight_of(found, name, original[name].shape[1]) for name in names}


def logits(checkpoint: Path, prompt: list[int]) -> Array:
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    with torch.no_grad():
        found: Array = model(torch.tensor([prompt])).logits[0, -1].numpy()
    return found


def test_int4_decode_graph_holds_no_unread_weight(int4_build: Build) -> None:
    graph = onnx.load(int4_build.graph("decode"), load_external_data=False).graph
    assert int4_build.manifest.quantization == "int4"
    operators = {node.op_type for node in graph.node}
    assert "MatMulNBits" in operators
    assert not operators & {"FusedMatMul", "MatMul"}
    read = {name for node in graph.node for name in node.input}
    assert {tensor.name for tensor in graph.initializer} <= read


def test_int4_weights_that_are_not_finite_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    broken = tmp_path / "m"
    broken.mkdir()
    (broken / "config.json").write_bytes((checkpoint / "config.json").read_bytes())
    tensors = load_file(checkpoint / "model.safetensors")
    tensors["lm_head.weight"][0, 0] = float("nan")
    save_file(tensors, broken / "model.safetensors")
    with pytest.raises(UserError, match=r"lm_head\.weight has NaN or infinite values"):
        build(broken, tmp_path / "b", L_max=64, weights="int4")
    assert not (tmp_path / "b").exists()


def test_diff_marks_int4_differences_as_quantized(
    checkpoint: Path, int4_build: Build, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--lengths", "20", "--steps", "4", "--json"]
    assert main(["diff", str(int4_build.directory), "--model", str(checkpoint), *flags]) == 0
    found = json.loads(capsys.readouterr().out)["differences"]
    assert {(one["quantized"], one["lossless"]) for one in found} == {(True, False)}
    assert all(one["distance"]["max_abs_error"] > 0 for one in found)


def test_diff_of_an_int4_build_reads_its_own_weights(
    checkpoint: Path, int4_build: Build, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is left is the rounding of activations."""

    def errors(*flags: str) -> Array:
        given = ["diff", str(int4_build.directory), *flags, "--lengths", "20", "--steps", "4"]
        assert main([*given, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)["differences"]
        return np.array([one["distance"]["mean_abs_error"] for one in found], np.float32)

    assert (errors() < 0.25 * errors("--model", str(checkpoint))).all()


OF_INT4: dict[str, Any] = {"block_size": 32, "gate_up_bits": 4, "down_bits": 4}
Arrays = dict[str, NDArray[Any]]


def int4_experts(with_zeros: bool = True) -> tuple[Arrays, Arrays, Arrays]:
    """A routing, the parts of eight experts, and the weights that they stand for."""
    rng = np.random.default_rng(0)
    choices = {
        "hidden_states": rng.standard_normal((6, 64), np.float32),
        "index": np.stack([rng.permutation(8)[:3] for _ in range(6)]),
        "weights": rng.random((6, 3), np.float32),
    }
    rounded: Arrays = {}
    stacks: Arrays = {}
    for name, shape in {"gate_up": (8, 64, 64), "down": (8, 64, 32)}.items():
        packed, scales = quantize(rng.standard_normal(shape, np.float32).reshape(-1, shape[-1]))
        drawn = rng.integers(5, 11, scales.shape)
        zeros = (drawn if with_zeros else np.full_like(drawn, 8)).astype(np.uint8)
        rounded[name] = dequantized(packed, scales, shape[-1], zeros.astype(np.float32))
        rounded[name] = rounded[name].reshape(shape)
        stacks[f"{name}.int4"] = packed.reshape(*shape[:-1], -1)
        stacks[f"{name}.scales"] = scales.reshape(*shape[:-1], -1)
        if not with_zeros:
            continue
        both = np.pad(zeros, ((0, 0), (0, zeros.shape[1] % 2)))
        stacks[f"{name}.zeros"] = (both[:, 0::2] | both[:, 1::2] << 4).reshape(*shape[:-1], -1)
    return choices, stacks, rounded


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("gated", [False, True])
def test_int4_experts_of_other_functions_are_read_by_onnxruntime_as_defined(
    gated: bool, zeros: bool
) -> None:
    choices, stacks, rounded = int4_experts(zeros)
    if not gated:
        rounded["gate_up"] = rounded["gate_up"][:, :32]
        stacks |= {name: one[:, :32] for name, one in stacks.items() if "gate_up" in name}
    activation = {"activation": "gelu" if gated else "relu2", "gated": int(gated)}
    graph = experts.marked(choices | stacks, "BlockExperts", **activation, **OF_INT4)
    if not zeros:
        marker = graph.nodes[0]
        marker.inputs = [*marker.inputs[:5], gs.Variable.empty(), *marker.inputs[5:]]
    ComposedExperts().apply(graph)
    got = experts.run_graph(graph, choices | stacks)
    expected = experts.shaped(choices | rounded, **activation)
    np.testing.assert_allclose(got, expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("biased", [False, True])
def test_int4_experts_are_read_by_onnxruntime_as_defined(biased: bool) -> None:
    """QMoE, with routing weights that don't add up to 1; and gpt-oss's activation and biases."""
    choices, stacks, rounded = int4_experts()
    rng = np.random.default_rng(1)
    activation = {"alpha": 1.0, "beta": 0.0, "limit": 0.0}
    if biased:
        shapes = {"gate_up_bias": (8, 64), "down_bias": (8, 64)}
        biases = {name: rng.standard_normal(one, np.float32) for name, one in shapes.items()}
        stacks, rounded = stacks | biases, rounded | biases
        activation = {"alpha": 1.7, "beta": 1.0, "limit": 4.0}
    graph = experts.marked(choices | stacks, "BlockExperts", **activation, **OF_INT4)
    MoE().apply(graph)
    got = experts.run_graph(graph, choices | stacks)
    expected = experts.defined(
        choices | rounded, **activation | {"limit": activation["limit"] or 3e38}
    )
    np.testing.assert_allclose(got, expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.slow
def test_int4_build_quantizes_experts_and_no_router(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = checkpoints.make("qwen3-moe", tmp_path / "m")
    made = build(model, tmp_path / "b", L_max=64, policy="full", weights="int4", prefill_chunk=32)
    files = {Path(one.file).name for one in made.manifest.weights if "layers.0.mlp" in one.file}
    stem = "model.layers.0.mlp"
    stacks = {f"{stem}.experts.{name}" for name in ("gate_up", "down")}
    expected = {f"{name}.{part}" for name in stacks for part in ("int4", "scales", "zeros")}
    assert files == {f"{name}.safetensors" for name in expected | {f"{stem}.gate.weight"}}
    flags = ["--lengths", "20", "--steps", "4", "--json"]
    assert main(["diff", str(made.directory), "--model", str(model), *flags]) == 0
    found = json.loads(capsys.readouterr().out)["differences"]
    assert all(one["quantized"] for one in found)


def test_int4_build_of_gpt2_equals_transformers_with_the_rounded_weights(tmp_path: Path) -> None:
    """All twelve matrices, head and embedding are quantized, though GPT-2's lie as [K,N]."""
    model = checkpoints.make("gpt2", tmp_path / "m")
    options = {"L_max": 64, "policy": "full", "prefill_chunk": 32, "weights": "int4"}
    made = build(model, tmp_path / "b", **options)
    kept, stored = load_file(model / "model.safetensors"), weights_of(made)
    names = {parts.whole(part) for part in stored if parts.whole(part) != part}
    assert len(names) == 14
    for name in names:
        original = kept[name.removesuffix(".transposed")]
        is_turned = name.endswith(".transposed")
        columns = original.shape[0 if is_turned else 1]
        values = weight_of(stored, name, columns)
        original.copy_(values.T if is_turned else values)
    rounded = tmp_path / "rounded"
    rounded.mkdir()
    (rounded / "config.json").write_bytes((model / "config.json").read_bytes())
    save_file(kept, rounded / "model.safetensors", {"format": "pt"})
    prompt = np.random.default_rng(0).integers(3, 250, 50).tolist()
    got = LLM(made.directory).executor.prefill_prompt(0, prompt).logits.copy()
    noise = np.abs(got - logits(rounded, prompt)).mean()
    assert noise < 0.25 * np.abs(got - logits(model, prompt)).mean()


@pytest.mark.parametrize(
    ("name", "router", "experts"),
    [
        ("ernie4_5_moe", "mlp.gate.weight", {"moe_num_experts": 40}),
        ("granitemoe", "block_sparse_moe.router.weight", {"num_local_experts": 40}),
        ("mixtral", "mlp.gate.weight", {"num_local_experts": 40}),
        ("qwen2_moe", "mlp.gate.weight", {"num_experts": 40}),
    ],
)
def test_int4_leaves_routers_and_gates_of_one_row_whole(
    name: str, router: str, experts: dict[str, int]
) -> None:
    config = config_of(name, **experts)
    decoder = look(config, family_of("", config.model_type))
    found = Traced.of(tracing.trace_decode(decoder, torch.float32), decoder)
    shapes = {one: found.model.graph.initializers[n].shape for n, one in found.sources.items()}
    spans = {n: TensorSpan(Path(), 0, 0, "F32", shape.numpy()) for n, shape in shapes.items()}
    trace = Marking(spans, Rounded(INT4), decoder.embedding).mark(found)
    whole = {one.partition(".layers.1.")[2] for one in trace.sources if one == parts.whole(one)}
    assert {one for one in whole if "gate." in one or "router" in one} >= {router}
    assert not any(parts.whole(one) != one and router in one for one in trace.sources)
    assert any(one.endswith("self_attn.o_proj.weight.int4") for one in trace.sources)


@pytest.mark.slow
def test_experts_of_a_width_without_whole_blocks_are_not_quantized(tmp_path: Path) -> None:
    model = checkpoints.make("qwen3-moe", tmp_path / "m", moe_intermediate_size=24)
    made = build(model, tmp_path / "b", L_max=64, policy="full", weights="int4", prefill_chunk=32)
    files = [Path(one.file).name for one in made.manifest.weights]
    assert "model.layers.0.mlp.experts.down.safetensors" in files
    assert not any(".experts." in name and ".int4" in name for name in files)
    assert LLM(made.directory).executor.prefill_prompt(0, [5, 6, 7]).logits.shape


def test_int4_build_stores_no_matrix_in_two_forms(int4_build: Build, checkpoint: Path) -> None:
    names = {
        Path(one.file).name.removesuffix(".safetensors") for one in int4_build.manifest.weights
    }
    wholes = load_file(checkpoint / "model.safetensors").keys() & names
    assert all("norm" in name for name in wholes)
    quantized = {name for name in names if parts.whole(name) != name}
    assert names == wholes | quantized
    assert not {parts.whole(name) for name in quantized} & wholes
