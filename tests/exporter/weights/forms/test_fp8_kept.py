"""`--weights fp8`: the checkpoint's bytes stay, and graphs dequantize them as transformers does."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator
from safetensors.torch import load_file, save_file

from snapexport.builder import BuildOptions
from snapexport.builder.plan.model import read_model
from snapexport.builder.plan.weights import stored_bytes
from snapexport.cli.app import main
from snapexport.compare.model import reference_model
from snapexport.contract.build_directory import Build
from snapexport.errors import UserError
from snapexport.exporter.weights.forms.parts import dequantize
from snapexport.files.safetensors import TensorSpan, read_header
from tests.builds import build
from tests.exporter.quantized_files import (
    DTYPES,
    dequantized_checkpoint,
    edit_tensors,
    quantize_to_fp8,
)
from tests.exporter.quantized_integers import quantize
from tests.exporter.weights.readers.test_compressed_tensors import config
from tests.exporter.weights.test_weights import weights_of
from tests.oracle import cases, checkpoints, masked
from tests.oracle.compare import assert_agrees_with
from tests.oracle.raw import RawBuild

pytestmark = pytest.mark.slow

FAMILIES = ("qwen3", "qwen3-moe", "deepseek-v3")
SCALES = ".row_scales"
SMALL: dict[str, Any] = {"L_max": 64, "L_recent": 16, "K": 8, "L_obs": 4, "prefill_chunk": 32}
FULL: dict[str, Any] = {"L_max": 64, "policy": "full", "prefill_chunk": 32}
TENSORRT: dict[str, Any] = {"target": "tensorrt", "weights": "fp8"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An fp8 checkpoint of each family."""
    directory = tmp_path_factory.mktemp("fp8-kept")
    for name in FAMILIES:
        quantize_to_fp8(checkpoints.make(name, directory / name))
    return directory


def original(model: Path) -> dict[str, torch.Tensor]:
    return load_file(model / "model.safetensors")


def stacked(tensors: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    """The bytes of a checkpoint's tensor, or of a stack of its experts, gates and ups in turn."""
    if name in tensors:
        return bits(tensors[name])
    stem, _, whole = name.rpartition(".")
    matrices = []
    while (expert := f"{stem}.{len(matrices)}.down_proj.weight") in tensors:
        gate, up = (bits(tensors[expert.replace("down", part)]) for part in ("gate", "up"))
        in_turn = torch.stack((gate, up), dim=1).flatten(0, 1)
        matrices.append(bits(tensors[expert]) if whole == "down" else in_turn)
    return torch.stack(matrices)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


@pytest.mark.parametrize("name", FAMILIES)
def test_fp8_bytes_of_a_build_are_those_of_the_checkpoint(
    name: str, folder: Path, tmp_path: Path
) -> None:
    made = build(folder / name, tmp_path / "b", **SMALL, **TENSORRT, dtype="bf16")
    written, want = weights_of(made), original(folder / name)
    kept = {n for n, one in written.items() if one.dtype == torch.float8_e4m3fn}
    whole = {n for n in want if f"{n}_scale_inv" in want and "kv_b_proj" not in n}
    assert {n for n in whole if ".experts." not in n} == {n for n in kept if ".experts." not in n}
    assert any(".experts." in n for n in kept) == (name != "qwen3")
    assert {n + SCALES for n in kept} == {n for n in written if n.endswith(SCALES)}
    for one in kept:
        assert torch.equal(bits(written[one]), stacked(want, one)), one
    assert made.manifest.quantization == "fp8"


def dequantized_by_onnx(made: Build, graph: str) -> dict[str, torch.Tensor]:
    """The weights of a graph as its own nodes give them, calculated by onnx's reference.

    The activations on which they depend in form are random.
    """
    model = onnx.load(made.directory / f"{graph}.onnx")
    readers = {name: node for node in model.graph.node for name in node.input}
    makers = {name: node for node in model.graph.node for name in node.output}
    nodes, ends, feeds = [], {}, {}
    for node in [n for n in model.graph.node if n.op_type == "DequantizeLinear"]:
        chain = [node]
        while (before := makers.get(chain[0].input[-1])) and before.op_type != "ReduceMin":
            chain.insert(0, before)
        if before:
            feeds[before.output[0]] = np.float32(np.random.default_rng(len(ends)).normal())
        if readers[node.output[0]].op_type == "Cast":
            chain.append(readers[node.output[0]])
        ends[chain[-1].output[0]] = node.input[0]
        nodes += chain
    nodes = list({node.output[0]: node for node in nodes}.values())
    read = {name for node in nodes for name in node.input}
    outputs = [onnx.helper.make_empty_tensor_value_info(name) for name in ends]
    inputs = [onnx.helper.make_empty_tensor_value_info(name) for name in feeds]
    weights = [one for one in model.graph.initializer if one.name in read]
    part = onnx.helper.make_graph(nodes, "weights", inputs, outputs, weights)
    whole = onnx.helper.make_model(part, opset_imports=model.opset_import)
    values = ReferenceEvaluator(whole).run(None, feeds)
    kinds = {np.dtype(np.float32): torch.float32, np.dtype(np.float16): torch.float16}
    return {
        name: torch.from_numpy(np.asarray(value).view(np.uint8)).view(
            kinds.get(value.dtype, torch.bfloat16)
        )
        for name, value in zip(ends.values(), values, strict=True)
    }


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, "bf16") for name in FAMILIES), ("qwen3", "fp32"), ("qwen3", "fp16")],
)
def test_weights_that_a_graph_dequantizes_equal_transformers_bit_for_bit(
    name: str, dtype: Any, folder: Path, tmp_path: Path
) -> None:
    options = SMALL | TENSORRT | {"dtype": dtype}
    made = build(folder / name, tmp_path / "b", **options)
    want = dequantized_checkpoint(folder / name, dtype)
    for graph in ("prefill", "decode"):
        got = dequantized_by_onnx(made, graph)
        assert len(got) == sum(one.endswith(SCALES) for one in weights_of(made))
        for weight, values in got.items():
            assert values.dtype == DTYPES[dtype]
            assert torch.equal(bits(values), stacked(want, weight)), weight


@pytest.mark.parametrize("strategy", ["tensor", "channel"])
def test_one_scale_of_a_matrix_or_a_row_is_that_of_its_blocks(
    strategy: str, tmp_path: Path
) -> None:
    """As compressed-tensors has them, of a family that is not published in fp8."""

    def parts(stem: str, rows: int, columns: int) -> Any:
        rng = np.random.default_rng(rows + columns)
        q = rng.normal(size=(rows, columns)).astype(ml_dtypes.float8_e4m3fn)
        scales = rng.uniform(0.01, 0.1, (1,) if strategy == "tensor" else (rows, 1))
        scales = scales.astype(np.float32)
        made = {f"{stem}.weight": q, f"{stem}.weight_scale": scales}
        return made, q.astype(np.float32) * scales

    model = checkpoints.make("llama", tmp_path / "m")
    scheme = {"num_bits": 8, "type": "float", "strategy": strategy}
    expected = quantize(model, config(scheme, format="float-quantized"), parts)
    made = build(model, tmp_path / "b", **SMALL, **TENSORRT, dtype="fp32")
    got = dequantized_by_onnx(made, "decode")
    assert got.keys() == expected.keys()
    written = weights_of(made)
    for name, values in got.items():
        assert np.array_equal(values.numpy(), expected[name])
        assert written[name + SCALES].shape == values.shape[:1]
    read = dequantize(written, json.loads((model / "config.json").read_text()))
    assert all(np.array_equal(read[name].numpy(), expected[name]) for name in expected)
    options = BuildOptions.of(model=str(model), out=tmp_path, dtype="fp32", **SMALL, **TENSORRT)
    planned = stored_bytes(read_model(str(model)), options)
    in_files = sum(written[name].nbytes for name in written)
    assert planned == pytest.approx(in_files, rel=0.01)


@pytest.mark.parametrize("name", FAMILIES)
def test_graphs_with_fp8_weights_agree_with_transformers_on_the_dequantized_ones(
    name: str, folder: Path, tmp_path: Path
) -> None:
    """ONNX Runtime runs the tensorrt graphs of an fp32 build."""
    plain = checkpoints.make(name, tmp_path / "plain")
    save_file(dequantized_checkpoint(folder / name, "fp32"), plain / "model.safetensors")
    options = FULL | TENSORRT | {"share_weights": False, "batch": 2, "decode_batches": (2,)}
    made = RawBuild(build(folder / name, tmp_path / "b", **options).directory)
    wants = [masked.run_plain(plain, cases.prompt(length), 4) for length in (25, 60)]
    assert_agrees_with(wants, made, name)


@pytest.mark.parametrize("options", [{"link_weights": True}, {}], ids=["linked", "copied"])
def test_an_fp8_matrix_is_in_the_weight_files_as_in_the_checkpoint(
    options: dict[str, Any], folder: Path, tmp_path: Path
) -> None:
    made = build(folder / "qwen3", tmp_path / "b", **SMALL, **TENSORRT, dtype="bf16", **options)
    name, spans = "model.layers.0.mlp.up_proj.weight", dict[str, TensorSpan]()
    for file in made.manifest.weights:
        spans |= read_header(made.directory / file.file)
    source = folder / "qwen3" / "model.safetensors"
    assert spans[name].file.samefile(source) == made.manifest.linked_weights == bool(options)
    assert spans[name].dtype == "F8_E4M3"
    graph = onnx.load(made.directory / "decode.onnx", load_external_data=False).graph
    kinds = {one.name: one.data_type for one in graph.initializer}
    assert kinds[name] == TensorProto.FLOAT8E4M3FN and kinds[name + SCALES] == TensorProto.FLOAT
    assert not made.manifest.graph_options.share_weights


def reference_weights(model: Any) -> dict[str, torch.Tensor]:
    """All weights of a reference, whose layers have them while they run."""
    found = dict(model.state_dict())

    def keep(prefix: str) -> Any:
        return lambda layer, *_: found.update(
            {f"{prefix}.{name}": one for name, one in layer.state_dict().items()}
        )

    for index, layer in enumerate(model.model.layers):
        layer.register_forward_pre_hook(keep(f"model.layers.{index}"))
    model(torch.tensor([[1, 2, 3]]))
    return found


def test_the_reference_of_a_build_with_fp8_weights_has_transformers_values(
    folder: Path, tmp_path: Path
) -> None:
    made = build(folder / "deepseek-v3", tmp_path / "b", **SMALL, **TENSORRT)
    state = reference_weights(reference_model(made, None)[0])
    want = dequantized_checkpoint(folder / "deepseek-v3", "fp32")
    same = [name for name in want if name in state]
    assert len(same) > 20 and all(torch.equal(state[name], want[name]) for name in same)
    gates = state["model.layers.1.mlp.experts.gate_up_proj"][0]
    assert torch.equal(
        gates[: len(gates) // 2], want["model.layers.1.mlp.experts.0.gate_proj.weight"]
    )


@pytest.mark.parametrize(("name", "dtype"), [("qwen3-moe", "bf16"), ("deepseek-v3", "fp32")])
def test_plan_counts_the_bytes_of_kept_fp8_weights(
    name: str, dtype: Any, folder: Path, tmp_path: Path
) -> None:
    made = build(folder / name, tmp_path / "b", **SMALL, **TENSORRT, dtype=dtype)
    options = BuildOptions.of(
        model=str(folder / name), out=tmp_path, dtype=dtype, **SMALL, **TENSORRT
    )
    spans = [
        one for f in made.manifest.weights for one in read_header(made.directory / f.file).items()
    ]
    in_files = sum(span.nbytes for _, span in spans)
    # A cut-off block at the end of each row, and a router's bias in fp32, are not counted.
    assert stored_bytes(read_model(str(folder / name)), options) == pytest.approx(
        in_files, rel=0.02
    )


@pytest.mark.parametrize("command", ["build", "plan"])
def test_fp8_weights_are_refused_of_a_checkpoint_without_any(
    command: str, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ["--out", str(tmp_path / "b")] if command == "build" else ["--memory", "1GiB"]
    flags = ["--model", str(checkpoint), "--L-max", "64", "--target", "tensorrt"]
    assert main([command, *flags, *place, "--weights", "fp8"]) == 2
    told = capsys.readouterr().err
    assert "keeps fp8 weights as they are" in told and "hint: " in told
    assert not (tmp_path / "b").exists()


def test_a_scale_that_fp16_cannot_hold_is_refused(tmp_path: Path) -> None:
    model = quantize_to_fp8(checkpoints.make("qwen3", tmp_path / "m"))
    name = "layers.0.self_attn.q_proj.weight_scale_inv"
    edit_tensors(model, **{name: torch.full((8, 4), 150.0)})
    with pytest.raises(UserError, match="fp16 cannot hold") as error:
        build(model, tmp_path / "b", **SMALL, **TENSORRT, dtype="fp16")
    assert error.value.hint == "use --dtype bf16" and not (tmp_path / "b").exists()
