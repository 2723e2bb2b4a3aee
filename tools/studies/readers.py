"""Compares the readers of quantized checkpoints with the libraries that write them.

pip install compressed-tensors bitsandbytes nvidia-modelopt; python -m tools.studies.readers

A library that is missing is left out. Prints a line for each way to quantize: the largest
difference from the library's own dequantization, relative to the largest weight, and the form.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import save_file

from snapexport.exporter.weights.conversion import as_torch
from snapexport.exporter.weights.forms.integers import IntegerWeight
from snapexport.exporter.weights.readers import read_quantization
from snapexport.exporter.weights.tensor_file import Tensor
from snapexport.files.safetensors import read_header

ROWS, COLUMNS = 64, 256
BF16 = 2.0**-8
"""What a library may round where it has no fp32."""


class Case(NamedTuple):
    """parts: of a weight x, as the library stores them. expected: by its own dequantization."""

    name: str
    config: dict[str, Any]
    parts: dict[str, torch.Tensor]
    expected: torch.Tensor


def main() -> None:
    """Print a line for each case. Raises SystemExit where one differs."""
    with tempfile.TemporaryDirectory() as folder:
        errors = [
            _compared(case, Path(folder))
            for cases in (compressed_tensors, bitsandbytes, modelopt)
            for case in _of_library(cases)
        ]
    raise SystemExit(sum(error > BF16 for error in errors))


def _of_library(cases: Callable[[], Iterator[Case]]) -> Iterator[Case]:
    with suppress(ImportError):
        yield from cases()


def _compared(case: Case, folder: Path) -> float:
    read = _read(case, folder)
    error = float((as_torch(read) - case.expected).abs().max() / case.expected.abs().max())
    form = read.form if isinstance(read, IntegerWeight) else type(read).__name__
    print(f"{case.name:60} {error:.2g} {form}")
    return error


def compressed_tensors() -> Iterator[Case]:
    """Each format with each strategy that it has."""
    groups: list[dict[str, Any]] = [
        {"strategy": "group", "group_size": 32},
        {"strategy": "channel"},
    ]
    wide: list[dict[str, Any]] = [
        {"strategy": "tensor"},
        {"strategy": "block", "block_structure": [32, 64]},
    ]
    for bits in (2, 3, 4, 5, 8):
        for symmetric in (True, False):
            for one in groups:
                yield _compressed("pack", type="int", num_bits=bits, symmetric=symmetric, **one)
    for one in (*groups, *wide):
        for symmetric in (True, False):
            yield _compressed("int", type="int", num_bits=8, symmetric=symmetric, **one)
        yield _compressed("float", type="float", num_bits=8, **one)
    powers: dict[str, Any] = {"strategy": "group", "group_size": 32, "scale_dtype": torch.uint8}
    yield _compressed("mxfp4-pack", type="float", num_bits=4, **powers)
    yield _compressed("mxfp8", type="float", num_bits=8, **powers)
    fp8: dict[str, Any] = {"group_size": 16, "scale_dtype": torch.float8_e4m3fn}
    yield _compressed("nvfp4-pack", type="float", num_bits=4, strategy="tensor_group", **fp8)


def _compressed(name: str, **of_weights: Any) -> Case:
    from compressed_tensors.compressors.base import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    arguments = QuantizationArgs(**of_weights)
    scheme = QuantizationScheme(targets=["Linear"], weights=arguments)
    weight = _random()
    least, most = _ranges(weight, arguments)
    whole = None
    state = {"weight": weight}
    if arguments.strategy == "tensor_group":
        whole = generate_gparam(weight.min().reshape(1), weight.max().reshape(1))
        state["weight_global_scale"] = whole
    state["weight_scale"], zeros = calculate_qparams(least, most, arguments, global_scale=whole)
    if whole is None:
        state["weight_scale"] = state["weight_scale"].float()
    if not arguments.symmetric:
        state["weight_zero_point"] = zeros
    form = f"{name}-quantized"
    compressor = BaseCompressor.get_value_from_registry(form)
    stored = compressor.compress(dict(state), scheme)
    expected = compressor.decompress({n: one.clone() for n, one in stored.items()}, scheme)
    config = {
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "format": form,
        "config_groups": {"group_0": scheme.model_dump(mode="json")},
    }
    parts = {f"x.{part}": one for part, one in stored.items()}
    return Case(f"{form} {of_weights}", config, parts, expected["weight"].float())


def _ranges(weight: torch.Tensor, arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The smallest and the largest value of what shares a scale."""
    match arguments.strategy:
        case "tensor":
            return weight.min().reshape(1), weight.max().reshape(1)
        case "block":
            height, width = arguments.block_structure
            blocks = weight.reshape(ROWS // height, height, COLUMNS // width, width)
            return blocks.amin((1, 3)), blocks.amax((1, 3))
    blocks = weight.reshape(ROWS, -1, arguments.group_size or COLUMNS)
    return blocks.amin(-1), blocks.amax(-1)


def bitsandbytes() -> Iterator[Case]:
    """4 bits by both tables, once with factors that are quantized too, and 8 bits."""
    from bitsandbytes import functional

    for table in ("nf4", "fp4"):
        for nested in (True, False):
            found, state = functional.quantize_4bit(
                _random(), blocksize=64, compress_statistics=nested, quant_type=table
            )
            config = {"quant_method": "bitsandbytes", "load_in_4bit": True}
            parts = {f"x.weight.{n}": one for n, one in state.as_dict(packed=True).items()}
            name = f"{table}, double quantization {nested}"
            whole = functional.dequantize_4bit(found, state).float()
            yield Case(name, config, parts | {"x.weight": found}, whole)
    found, largest, _ = functional.int8_vectorwise_quant(_random().half())
    whole = functional.int8_vectorwise_dequant(found, largest).float()
    config = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    yield Case("int8", config, {"x.weight": found, "x.SCB": largest.float()}, whole)


def modelopt() -> Iterator[Case]:
    """NVFP4."""
    from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor

    found, scales, whole = NVFP4QTensor.quantize(_random(), 16)
    sizes = {"block_sizes": {-1: 16}, "scale": scales, "double_scale": whole}
    parts = {"x.weight": found._quantized_data, "x.weight_scale": scales, "x.weight_scale_2": whole}
    config = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    yield Case("NVFP4 by ModelOpt", config, parts, found.dequantize(dtype=torch.float32, **sizes))


def _random() -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).normal(size=(ROWS, COLUMNS))).float()


def _read(case: Case, folder: Path) -> Tensor:
    quantization = read_quantization({"quantization_config": case.config})
    assert quantization is not None
    file = folder / "x.safetensors"
    save_file({name: one.contiguous() for name, one in case.parts.items()}, file)
    return quantization.tensors(read_header(file))["x.weight"]


if __name__ == "__main__":
    main()
