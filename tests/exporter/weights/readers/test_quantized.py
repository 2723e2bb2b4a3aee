"""Quantized checkpoints: dequantized as by transformers, bit for bit; damaged ones are refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from snapexport import builder
from snapexport.cli.app import main
from snapexport.errors import UserError
from snapexport.exporter.model import require_readable
from snapexport.exporter.read import open_checkpoint
from snapexport.exporter.weights.arranged import swap_axes
from snapexport.exporter.weights.readers import read_quantization
from snapexport.exporter.weights.readers.fp8 import Fp8, Fp8Tensor
from snapexport.exporter.weights.readers.mxfp4 import Mxfp4
from snapexport.exporter.weights.readers.quantization import Quantization
from snapexport.exporter.weights.tensor_file import Tensor, blocks
from snapexport.files.safetensors import read_header
from tests.builds import build
from tests.exporter.quantized_files import (
    DTYPES,
    by_transformers,
    dequantized_checkpoint,
    edit_quantization,
    edit_tensors,
    punch_holes,
    quantize_to_fp8,
    quantize_to_mxfp4,
    random_mxfp4,
    to_fp8,
)
from tests.exporter.weights.test_weights import is_same, weights_of
from tests.oracle import checkpoints

pytestmark = pytest.mark.slow

MXFP4 = Mxfp4()


def read(tensor: Tensor, multiple: int = 1, most: int = 1 << 20) -> np.ndarray[Any, Any]:
    """All values, read in blocks."""
    return np.concatenate(list(blocks(tensor, multiple, most))).reshape(tensor.shape)


def opened(file: Path, quantization: Quantization, **tensors: torch.Tensor) -> dict[str, Tensor]:
    save_file(tensors, file)
    return quantization.tensors(read_header(file))


@pytest.fixture(scope="module")
def fp8_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return quantize_to_fp8(checkpoints.make("qwen3", tmp_path_factory.mktemp("fp8") / "m"))


@pytest.mark.parametrize("dtype", DTYPES)
def test_fp8_weights_of_a_build_equal_transformers(
    fp8_checkpoint: Path, tmp_path: Path, dtype: Any
) -> None:
    made = build(fp8_checkpoint, tmp_path / "b", L_max=32, dtype=dtype)
    assert is_same(weights_of(made), dequantized_checkpoint(fp8_checkpoint, dtype))


OPTIONS: list[dict[str, Any]] = [{"dtype": one} for one in DTYPES] + [{"weights": "int4"}]


@pytest.mark.parametrize(
    ("name", "quantize", "options"),
    [
        ("qwen3", quantize_to_fp8, {"weights": "int4"}),
        ("deepseek-v3", quantize_to_fp8, {"dtype": "fp32"}),
        *(("gpt-oss", quantize_to_mxfp4, options) for options in OPTIONS),
    ],
)
def test_build_of_a_quantized_checkpoint_is_that_of_its_dequantized_weights(
    name: str, quantize: Callable[[Path], Path], options: dict[str, Any], tmp_path: Path
) -> None:
    """Builds of plain weights are compared with transformers by test_parity_architectures.py.

    DeepSeek's matrices of keys and values are stored apart.
    """
    plain = checkpoints.make(name, tmp_path / "plain")
    quantized = quantize(checkpoints.make(name, tmp_path / "quantized"))
    save_file(dequantized_checkpoint(quantized, "fp32"), plain / "model.safetensors")
    made = [
        build(model, tmp_path / f"{model.name}.b", L_max=32, **options)
        for model in (quantized, plain)
    ]
    ours, want = (weights_of(one) for one in made)
    assert is_same(ours, want)


def test_holes_in_quantized_files_are_holes_in_the_build(tmp_path: Path) -> None:
    """So the shape of a model of hundreds of gigabytes can be exported from a sparse file."""
    model = quantize_to_mxfp4(checkpoints.make("gpt-oss", tmp_path / "m", hidden_size=512))
    file = model / "model.safetensors"
    punch_holes(file, read_header(file).values())
    made = builder.build(model, tmp_path / "b", L_max=32)  # the store keeps no holes
    files = made.directory.glob("weights/*experts.down*")
    stacks = [path for path in files if path.stat().st_size > 1 << 20]
    assert len(stacks) == 4
    for path in stacks:
        assert path.stat().st_blocks * 512 < path.stat().st_size / 8
        (values,) = load_file(path).values()
        assert not values.any()


@pytest.mark.parametrize(
    ("multiple", "most"), [(1, 1), (1, 1 << 20), (80, 100), (35, 1), (1400, 1)]
)
def test_fp8_blocks_are_cut_off_at_the_ends_of_rows_and_columns(
    tmp_path: Path, multiple: int, most: int
) -> None:
    """As in DeepSeek's 576 rows."""
    weight = torch.randn(70, 40, generator=torch.Generator().manual_seed(0))
    quantized, scales = to_fp8(weight, 16)
    (tensor,) = opened(
        tmp_path / "x.safetensors",
        Fp8((16, 16)),
        w=quantized,
        w_scale_inv=scales,
    ).values()
    want = by_transformers(quantized, scales, "fp32")
    assert np.array_equal(read(tensor, multiple, most), want.numpy())
    assert all(len(block) % multiple == 0 for block in blocks(tensor, multiple, most))


@pytest.mark.parametrize("byte", [127, 255])
def test_fp8_values_that_are_nan_are_refused(byte: int, tmp_path: Path) -> None:
    quantized, scales = to_fp8(torch.ones(32, 32))
    quantized.view(torch.uint8)[20, 3] = byte
    tensors = opened(tmp_path / "x.safetensors", Fp8((16, 16)), w=quantized, w_scale_inv=scales)
    with pytest.raises(UserError, match="a value of the tensor w is NaN"):
        read(tensors["w"])


def test_fp8_scales_may_be_powers_of_two_in_a_byte(tmp_path: Path) -> None:
    quantized, _ = to_fp8(torch.randn(32, 32, generator=torch.Generator().manual_seed(0)))
    scales = torch.tensor([[120, 127], [130, 1]], dtype=torch.uint8).view(torch.float8_e8m0fnu)
    tensors = opened(tmp_path / "x.safetensors", Fp8((16, 16)), w=quantized, w_scale_inv=scales)
    assert np.array_equal(read(tensors["w"]), by_transformers(quantized, scales, "fp32").numpy())


@pytest.mark.parametrize("most", [1, 1 << 20])
def test_mxfp4_tensors_equal_transformers(tmp_path: Path, most: int) -> None:
    packed, scales = random_mxfp4(3, 10, 64)
    tensors = opened(tmp_path / "x.safetensors", MXFP4, x_blocks=packed, x_scales=scales)
    want = convert_moe_packed_tensors(packed, scales, dtype=torch.float32).numpy()
    assert tensors.keys() == {"x"} and tensors["x"].shape == want.shape == (3, 64, 10)
    assert np.array_equal(read(tensors["x"], most=most).view(np.uint32), want.view(np.uint32))
    rows = read(swap_axes(tensors["x"]), most=most)
    assert np.array_equal(rows, want.swapaxes(1, 2))


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_mxfp4_rounded_to_16_bits_equals_transformers(tmp_path: Path, dtype: str) -> None:
    packed, scales = random_mxfp4(2, 6, 32)
    scales = scales % 20 + 115  # fp16 holds no larger ones
    tensors = opened(tmp_path / "x.safetensors", MXFP4, x_blocks=packed, x_scales=scales)
    got = torch.from_numpy(read(tensors["x"])).to(DTYPES[dtype])
    assert torch.equal(got, convert_moe_packed_tensors(packed, scales, dtype=DTYPES[dtype]))


WHOLE = {"weight_block_size": None, "activation_scheme": "static"}
Edit = Callable[[Path], object]
SCALE = "layers.0.self_attn.q_proj.weight_scale_inv"
GRID = torch.ones(8, 4)
"""The shape of that scale."""
REFUSED: dict[str, tuple[Edit, str]] = {
    "no scales": (lambda m: edit_tensors(m, **{SCALE: None}), "is fp8 and has no"),
    "no weight": (
        lambda m: edit_tensors(m, **{"layers.0.self_attn.q_proj.weight": None}),
        "without",
    ),
    "too few scales": (lambda m: edit_tensors(m, **{SCALE: GRID[:7]}), "not one for each block"),
    "a vector of scales": (lambda m: edit_tensors(m, **{SCALE: GRID[0]}), "not one for each block"),
    "scales in int8": (lambda m: edit_tensors(m, **{SCALE: GRID.to(torch.int8)}), "scales as I8"),
    "NaN": (lambda m: edit_tensors(m, **{SCALE: GRID * torch.nan}), "NaN or infinite"),
    "negative": (lambda m: edit_tensors(m, **{SCALE: -GRID}), "negative, NaN or infinite"),
    "one infinite": (
        lambda m: edit_tensors(m, **{SCALE: GRID.index_fill(0, torch.tensor(7), torch.inf)}),
        "negative, NaN or infinite",
    ),
    "another method": (lambda m: edit_quantization(m, quant_method="aqlm"), "method 'aqlm'"),
    "a method that is no text": (lambda m: edit_quantization(m, quant_method=["fp8"]), "method"),
    "a method of other families": (
        lambda m: edit_quantization(m, quant_method="mxfp4", weight_block_size=None),
        "mxfp4",
    ),
    "one scale": (lambda m: edit_quantization(m, weight_block_size=None), r"not of \[1, 1\]"),
    "blocks of 0": (lambda m: edit_quantization(m, weight_block_size=[0, 16]), "weight_block_size"),
    "an unknown scheme": (
        lambda m: edit_quantization(m, activation_scheme="other"),
        "activation_scheme 'other'",
    ),
    "an unknown key": (lambda m: edit_quantization(m, group_size=4), "unknown key 'group_size'"),
    "names that are numbers": (
        lambda m: edit_quantization(m, modules_to_not_convert=[1]),
        "not a list of names",
    ),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_a_damaged_fp8_checkpoint_is_refused_before_it_is_traced(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit, message = REFUSED[fault]
    model = quantize_to_fp8(checkpoints.make("qwen3", tmp_path / "m"))
    edit(model)
    monkeypatch.setattr("snapexport.exporter.trace.trace_prefill", lambda *_: pytest.fail("traced"))
    with pytest.raises(UserError, match=message) as error:
        build(model, tmp_path / "b", L_max=32)
    assert error.value.hint and not (tmp_path / "b").exists()


BLOCKS, SCALES = random_mxfp4(2, 4, 64)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"x_blocks": BLOCKS}, "without x_scales"),
        ({"x_scales": SCALES}, "without x_blocks"),
        ({"x_blocks": BLOCKS, "x_scales": SCALES[:, :, :1]}, "a scale for each"),
        ({"x_blocks": BLOCKS[..., :8], "x_scales": SCALES}, "blocks \\[E,N,K/32,16\\]"),
        ({"x_blocks": BLOCKS[0], "x_scales": SCALES[0]}, "blocks \\[E,N,K/32,16\\]"),
        ({"x_blocks": BLOCKS.float(), "x_scales": SCALES}, "both as U8"),
        ({"x_blocks": BLOCKS, "x_scales": SCALES.float()}, "both as U8"),
    ],
)
def test_mxfp4_tensors_that_do_not_fit_are_refused(
    tensors: dict[str, torch.Tensor], message: str, tmp_path: Path
) -> None:
    whole = {name: one.contiguous() for name, one in tensors.items()}
    with pytest.raises(UserError, match=message):
        opened(tmp_path / "x.safetensors", MXFP4, **whole)


def test_the_mxfp4_scale_that_stands_for_nan_is_refused(tmp_path: Path) -> None:
    scales = SCALES.clone()
    scales[1, 3, 1] = 255
    tensors = opened(tmp_path / "x.safetensors", MXFP4, x_blocks=BLOCKS, x_scales=scales)
    with pytest.raises(UserError, match="a scale of the tensor x is NaN"):
        read(tensors["x"])


def test_diff_of_a_quantized_checkpoint_takes_the_weights_of_the_build(
    fp8_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = build(fp8_checkpoint, tmp_path / "b", L_max=32, policy="full")
    flags = ["--lengths", "20", "--steps", "2"]
    assert main(["diff", str(made.directory), *flags]) == 0
    assert main(["diff", str(made.directory), "--model", str(fp8_checkpoint), *flags]) in (0, 2)
    told = capsys.readouterr().err
    assert not told or "transformers cannot read the quantized checkpoint" in told


def test_a_config_without_quantization_has_none() -> None:
    assert (
        read_quantization({}) is None and read_quantization({"quantization_config": None}) is None
    )


def test_mxfp4_is_refused_for_families_that_are_not_published_in_it(tmp_path: Path) -> None:
    model = checkpoints.make("llama", tmp_path / "m")
    edit_quantization(model, quant_method="mxfp4")
    with pytest.raises(UserError, match="mxfp4, which is not supported with the architecture"):
        require_readable(open_checkpoint(model))


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_one_fp8_scale_of_a_matrix_is_that_of_all_its_blocks(
    shape: tuple[int, ...], tmp_path: Path
) -> None:
    weight = torch.randn(140, 200, generator=torch.Generator().manual_seed(0))
    quantized, scale = weight.to(torch.float8_e4m3fn), torch.full(shape, 0.25)
    whole = read_quantization({"quantization_config": {"quant_method": "fp8", **WHOLE}})
    assert whole is not None and len(whole.left_out) == 1
    tensors = opened(tmp_path / "x.safetensors", whole, w=quantized, w_scale_inv=scale)
    assert np.array_equal(read(tensors["w"]), (quantized.float() * 0.25).numpy())
    factors = tensors["w"]
    assert isinstance(factors, Fp8Tensor) and factors.factors().shape == (2, 2)
