"""Integers for TensorRT: DequantizeLinear's parts against their definition, and whole builds."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto
from safetensors.numpy import load_file, save_file

from snapexport.builder import BuildOptions
from snapexport.builder.plan.model import read_model
from snapexport.builder.plan.weights import stored_bytes
from snapexport.contract.targets import capabilities
from snapexport.errors import UserError
from snapexport.exporter.weights.forms.choice import Signed, refusal, symmetric, to_signed
from snapexport.exporter.weights.forms.integers import Form
from snapexport.exporter.weights.forms.parts import dequantize
from snapexport.exporter.weights.forms.rounding import RoundedWeight
from snapexport.files.safetensors import TensorSpan, read_header
from snapexport.graphs.markers import BLOCK_GATHER, BLOCK_MATMUL, TRACE_DOMAIN
from snapexport.graphs.targets.tensorrt_weights import Dequantized
from tests.builds import build
from tests.exporter import gguf_files
from tests.exporter.quantized_integers import Weight, quantize, rows_of_words
from tests.exporter.weights.forms.test_kept_integers import FORMS, Noted, Random, stored
from tests.exporter.weights.readers.test_awq_gptq import AWQ, GPTQ
from tests.exporter.weights.readers.test_compressed_tensors import config, ints
from tests.exporter.weights.test_weights import weights_of
from tests.graphs import bodies
from tests.graphs.test_experts import exported
from tests.oracle import cases, checkpoints, masked
from tests.oracle.compare import assert_agrees_with
from tests.oracle.raw import RawBuild

FULL: dict[str, Any] = {"L_max": 64, "policy": "full", "prefill_chunk": 32}
TENSORRT: dict[str, Any] = FULL | {"target": "tensorrt"}


def run(marker: str, weight: Signed, of_parts: dict[str, Any], first: Any) -> Any:
    """The output of a graph of one marker, by ONNX Runtime.

    With a byte for each integer: graphsurgeon packs none of 4 bits.
    """
    form, (rows, columns) = weight.form, weight.shape
    packed = of_parts[f"signed{form.bits}"]
    if form.bits == 4:
        halves = np.stack((packed << 4, packed), -1).view(np.int8) >> 4
        packed = halves.reshape(rows, columns)
    values = {"q": packed, "scales": of_parts["scales"]}
    values |= {name: of_parts.get(name) for name in ("zeros", "minima", "order")}
    inputs: list[gs.Tensor] = [gs.Variable("first", first.dtype, first.shape)]
    for name, one in list(values.items())[: 4 if marker == BLOCK_GATHER else 5]:
        inputs.append(gs.Variable.empty() if one is None else gs.Constant(name, one))
    shape = (*first.shape, columns) if marker == BLOCK_GATHER else (len(first), rows)
    output, attributes = gs.Variable("output", np.float32, shape), {"bits": form.bits}
    node = gs.Node(marker, "marked", attributes, inputs, [output], domain=TRACE_DOMAIN)
    graph = gs.Graph([node], inputs[:1], [output], opset=24)
    Dequantized().apply(graph)
    return bodies.run(exported(graph), {"first": first})["output"]


@settings(max_examples=40, deadline=None)
@given(form=st.sampled_from(FORMS), rows=st.integers(1, 40), seed=st.integers(0, 999))
def test_products_lookups_and_readers_have_the_values_of_every_form(
    tmp_path_factory: pytest.TempPathFactory, form: Form, rows: int, seed: int
) -> None:
    """Scales are of either sign."""
    original = Random((rows, 2 * form.block), form, seed)
    weight = Signed(original)
    of_parts = stored(weight, tmp_path_factory.mktemp("parts"))
    close = {"rtol": 0, "atol": 1e-5 * np.abs(original.values).max()}
    got = run(BLOCK_MATMUL, weight, of_parts, np.eye(2 * form.block, dtype=np.float32))
    np.testing.assert_allclose(got.T, original.values, **close)
    tensors = {f"w.{name}": torch.from_numpy(one.copy()) for name, one in of_parts.items()}
    np.testing.assert_allclose(dequantize(tensors)["w"].numpy(), original.values, **close)
    if not form.ordered:
        places = np.random.default_rng(seed).integers(0, rows, (2, 3))
        got = run(BLOCK_GATHER, weight, of_parts, places)
        np.testing.assert_allclose(got, original.values[places], **close)


@pytest.mark.parametrize(("bits", "most"), [(4, 0.13), (8, 0.008)])
def test_floats_are_rounded_around_zero_in_blocks_that_divide_a_row(
    bits: Any, most: float, tmp_path: Path
) -> None:
    values = np.random.default_rng(0).standard_normal((16, 96)).astype(np.float32)
    save_file({"w": values}, tmp_path / "w.safetensors")
    form = symmetric(Form(bits, 64, None), 96)
    assert form == Form(bits, 32, 1 << bits - 1, signed=True)
    rounded = RoundedWeight("w", read_header(tmp_path / "w.safetensors")["w"], form)
    got = np.concatenate(list(rounded.blocks(1, 1 << 20))).reshape(values.shape)
    assert 0 < np.linalg.norm(got - values) / np.linalg.norm(values) < most
    (rows,) = rounded.rows()
    assert rows.zeros is None and (rows.scales > 0).all()
    assert symmetric(Form(bits, 64, None), 24) is None


def test_what_dequantizelinear_cannot_read_is_refused_with_its_reason() -> None:
    cut = Form(4, 32, 8)
    assert refusal(cut, (8, 64)) is None and "within a block" in str(refusal(cut, (8, 80)))
    assert refusal(cut, (4, 8, 64)) is None
    for other in (Form(4, 32, None), Form(4, 32, 0, True), Form(4, 32, 8, ordered=True)):
        assert refusal(other, (8, 64)) is None and "experts" in str(refusal(other, (4, 8, 64)))
    assert to_signed(None) is None and to_signed(Random((8, 80), cut, 0)) is None


def quantized_by(method: str, name: str, model: Path, **changes: Any) -> Path:
    """A checkpoint with random integers, and beside it one of what they dequantize to: `plain`."""

    def parts(stem: str, rows: int, columns: int) -> Any:
        weight = Weight(rows, columns, 16, 4, sym=method != "awq", seed=rows + columns)
        if method == "gptq-order":
            weight.shuffled()
        if method == "ct-int8":
            weight = Weight(rows, columns, 32, 8, sym=True, seed=rows + columns)
            return rows_of_words(weight, stem, sym=True), weight.dequantized
        return getattr(weight, method.partition("-")[0])(stem), weight.dequantized

    checkpoints.make(name, model, **changes)
    plain = model.with_name("plain")
    plain.mkdir()
    (plain / "config.json").write_bytes((model / "config.json").read_bytes())
    configs = {"awq": AWQ | {"group_size": 16}, "gptq": GPTQ | {"group_size": 16}}
    configs |= {"gptq-order": configs["gptq"] | {"desc_act": True}}
    configs |= {"ct-int8": config(ints(32, 8, symmetric=True))}
    whole = load_file(model / "model.safetensors") | quantize(model, configs[method], parts)
    save_file(whole, plain / "model.safetensors", {"format": "pt"})
    return plain


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "name", "form"),
    [
        ("awq", "qwen3", "int4-16+minima"),
        ("gptq", "qwen3-moe", "int4-16"),
        ("gptq-order", "qwen3", "int4-16+order"),
        ("ct-int8", "qwen3-moe", "int8-32"),
    ],
)
def test_graphs_for_tensorrt_agree_with_transformers_on_the_dequantized_integers(
    method: str, name: str, form: str, tmp_path: Path
) -> None:
    """ONNX Runtime runs them in fp32. Those of 4 bits are kept by default."""
    model = tmp_path / "m"
    plain = quantized_by(method, name, model)
    asked = {"weights": "keep"} if "int8" in form else {}
    made = build(model, tmp_path / "b", **TENSORRT, **asked, batch=2)
    assert made.manifest.quantization == "keep" and made.manifest.matrices[form] > 10
    assert not made.manifest.graph_options.share_weights
    wants = [masked.run_plain(plain, cases.prompt(length), 4) for length in (25, 60)]
    assert_agrees_with(wants, RawBuild(made.directory), method)
    options = BuildOptions.of(model=str(model), out=tmp_path, weights="keep", **TENSORRT)
    assert stored_bytes(read_model(str(model)), options) == pytest.approx(in_files(made), rel=0.02)


def in_files(made: Any) -> int:
    spans = dict[str, TensorSpan]()
    for file in made.manifest.weights:
        spans |= read_header(made.directory / file.file)
    return sum(span.nbytes for span in spans.values())


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0", "Q5_0"])
def test_a_gguf_files_integers_are_read_in_blocks(kind: str, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    file = gguf_files.make("llama", tmp_path, gguf.GGMLQuantizationType[kind])
    kept = build(file, tmp_path / "kept", **TENSORRT, dtype="fp16", weights="keep")
    whole = build(file, tmp_path / "whole", **FULL, weights="dequantize")
    written, expected = dequantize(weights_of(kept)), weights_of(whole)
    for name, one in written.items():
        torch.testing.assert_close(one.float(), expected[name], rtol=2e-3, atol=1e-4)
    graph = onnx.load(kept.graph("decode"), load_external_data=False).graph
    types = {TensorProto.INT4: 0.5, TensorProto.INT8: 1}
    stacks = {one.name: one for one in graph.initializer if one.data_type in types}
    assert len(stacks) == kept.manifest.matrices[next(iter(kept.manifest.matrices))] == 16
    for one in stacks.values():
        (length,) = (int(e.value) for e in one.external_data if e.key == "length")
        assert length == np.prod(one.dims) * types[one.data_type]


@pytest.mark.parametrize("bits", ["int4", "int8"])
def test_rounded_builds_are_near_the_checkpoint(
    bits: str, checkpoint: Path, tmp_path: Path
) -> None:
    made = build(checkpoint, tmp_path / "b", **TENSORRT, weights=bits)
    assert not any("+zeros" in form for form in made.manifest.matrices)
    assert made.manifest.bits_per_weight < {"int4": 6.2, "int8": 9}[bits]
    got = dequantize(weights_of(made))
    want = load_file(checkpoint / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    share = np.linalg.norm(got[name].numpy() - want[name]) / np.linalg.norm(want[name])
    assert 0 < share < {"int4": 0.13, "int8": 0.008}[bits]


@pytest.mark.slow
def test_what_is_not_kept_is_reported_with_its_reason(tmp_path: Path) -> None:
    noted = Noted()
    quantized_by("awq", "qwen3-moe", tmp_path / "m")
    build(tmp_path / "m", tmp_path / "b", progress=noted, **TENSORRT)
    (told,) = noted.notes
    assert "dequantized to fp32, integers in the checkpoint: the target reads none" in told
    assert "experts with zero points" in told


@pytest.mark.parametrize(("kind", "flags"), [("Q4_0", {"share_weights": True}), ("Q8_0", {})])
def test_shared_weights_and_eight_bits_leave_no_integers_by_default(
    kind: str, flags: dict[str, Any], tmp_path: Path
) -> None:
    gguf = pytest.importorskip("gguf")
    file = gguf_files.make("llama", tmp_path, gguf.GGMLQuantizationType[kind])
    made = build(file, tmp_path / "b", **TENSORRT, **flags)
    assert made.manifest.quantization is None and made.manifest.graph_options.share_weights


@pytest.mark.slow
def test_scales_whose_products_fp16_cannot_hold_are_refused(tmp_path: Path) -> None:
    def parts(stem: str, rows: int, columns: int) -> Any:
        weight = Weight(rows, columns, 32, 4, sym=True)
        weight.scales[1, 1] = 2.0**14
        return rows_of_words(weight, stem, sym=True), weight.dequantized

    quantize(checkpoints.make("llama", tmp_path / "m"), config(ints(symmetric=True)), parts)
    build(tmp_path / "m", tmp_path / "b", **TENSORRT, dtype="bf16")
    with pytest.raises(UserError, match="values that F16 cannot hold"):
        build(tmp_path / "m", tmp_path / "c", **TENSORRT, dtype="fp16")
    assert not (tmp_path / "c").exists()


def test_a_compiler_keeps_integers_by_default_if_most_have_four_bits() -> None:
    mixed = [(4, 100), (8, 101)]
    for target, kept in (("tensorrt", False), ("onnxruntime", True)):
        assert capabilities(target).keeps(mixed) is kept
        assert capabilities(target).keeps([*mixed, (4, 2)]) and not capabilities(target).keeps([])
