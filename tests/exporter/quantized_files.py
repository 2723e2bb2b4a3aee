"""Makes quantized tensors and checkpoints for tests, and dequantizes them by transformers."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from snapexport.files.safetensors import TensorSpan

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
FP8_BLOCK = 16
"""Rows and columns that share a scale: the tests' models are too small for 128."""


def to_fp8(weight: Tensor, block: int = FP8_BLOCK) -> tuple[Tensor, Tensor]:
    """A matrix [N,K] -> float8_e4m3fn [N,K], and fp32 scales of whole and cut-off blocks."""
    rows, columns = weight.shape
    padded = torch.nn.functional.pad(weight.float(), (0, -columns % block, 0, -rows % block))
    grid = padded.reshape(padded.shape[0] // block, block, -1, block)
    scales = grid.abs().amax((1, 3)) / 448
    quantized = (grid / scales[:, None, :, None]).reshape(padded.shape)[:rows, :columns]
    return quantized.to(torch.float8_e4m3fn), scales


def quantize_to_fp8(directory: Path) -> Path:
    """Rewrite a checkpoint's linear layers, in place."""
    file = directory / "model.safetensors"
    tensors: dict[str, Tensor] = {}
    for name, tensor in load_file(file).items():
        if "_proj" in name and tensor.ndim == 2:
            tensors[name], tensors[f"{name}_scale_inv"] = to_fp8(tensor)
        else:
            tensors[name] = tensor.to(torch.bfloat16)
    save_file({name: one.contiguous() for name, one in tensors.items()}, file)
    block = [FP8_BLOCK, FP8_BLOCK]
    given = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
    edit_quantization(directory, **given, weight_block_size=block)
    return directory


def quantize_to_mxfp4(directory: Path) -> Path:
    """Give a gpt-oss checkpoint random experts of 4 bits, in place."""
    file = directory / "model.safetensors"
    tensors = load_file(file)
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, columns, rows = tensors.pop(name).shape
        blocks, scales = random_mxfp4(experts, rows, columns, seed=len(tensors))
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales % 4 + 122}
    save_file(tensors, file)
    skipped = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"]
    edit_quantization(directory, quant_method="mxfp4", modules_to_not_convert=skipped)
    return directory


def edit_quantization(directory: Path, **values: Any) -> None:
    """Write keys of config.json's quantization_config."""
    file = directory / "config.json"
    config = json.loads(file.read_text())
    config["quantization_config"] = config.get("quantization_config", {}) | values
    file.write_text(json.dumps(config))


def edit_tensors(directory: Path, **changes: Tensor | None) -> None:
    """Replace tensors by the ends of their names; None removes one."""
    file = directory / "model.safetensors"
    tensors = load_file(file)
    for part, tensor in changes.items():
        (name,) = [one for one in tensors if one.endswith(part)]
        del tensors[name]
        if tensor is not None:
            tensors[name] = tensor
    save_file(tensors, file)


def by_transformers(quantized: Tensor, scales: Tensor, dtype: str) -> Tensor:
    """An fp8 matrix by transformers, which takes whole blocks: cut-off ones are padded here."""
    rows, columns = quantized.shape
    whole = torch.zeros([FP8_BLOCK * size for size in scales.shape], dtype=torch.float8_e4m3fn)
    whole.view(torch.uint8)[:rows, :columns] = quantized.view(torch.uint8)
    found: Tensor = Fp8Dequantize(None)._dequantize_one(whole, scales, DTYPES[dtype])
    return found[:rows, :columns].contiguous()


def dequantized_checkpoint(directory: Path, dtype: str) -> dict[str, Tensor]:
    """All tensors of an fp8 or mxfp4 checkpoint in `dtype`, dequantized by transformers."""
    stored = load_file(directory / "model.safetensors")
    found = {}
    for name, tensor in stored.items():
        if name.endswith("_blocks"):
            stem = name.removesuffix("_blocks")
            scales = stored[f"{stem}_scales"]
            found[stem] = convert_moe_packed_tensors(tensor, scales, dtype=DTYPES[dtype])
        elif (scale := f"{name}_scale_inv") in stored:
            found[name] = by_transformers(tensor, stored[scale], dtype)
        elif not name.endswith(("_scales", "_scale_inv")):
            found[name] = tensor.to(DTYPES[dtype])
    return found


def punch_holes(file: Path, spans: Iterable[TensorSpan]) -> None:
    """Replace tensors by holes, in a new file: whole blocks of it lie nowhere on the disk."""
    raw, end = file.read_bytes(), 0
    file.unlink()
    with file.open("xb") as out:
        for span in sorted(spans, key=lambda one: one.offset):
            out.write(raw[end : span.offset])
            end = span.offset + span.nbytes
            out.seek(end)
        out.write(raw[end:])
        out.truncate(len(raw))


def random_mxfp4(*shape: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Blocks [...,K/32,16] and scales of a random tensor [...,K]: all bytes, most powers."""
    generator = torch.Generator().manual_seed(seed)
    blocks = (*shape[:-1], shape[-1] // 32, 16)
    packed = torch.randint(0, 256, blocks, generator=generator, dtype=torch.uint8)
    scales = torch.randint(0, 250, blocks[:-1], generator=generator, dtype=torch.uint8)
    return packed, scales
