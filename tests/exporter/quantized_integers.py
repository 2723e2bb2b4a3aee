"""Random weights of small integers, and their parts as the quantized formats store them."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from snapexport.exporter.weights.readers import read_quantization
from snapexport.exporter.weights.tensor_file import Tensor, blocks
from snapexport.files.safetensors import read_header

Arrays = dict[str, NDArray[Any]]
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def packed(values: NDArray[Any], bits: int) -> NDArray[np.int32]:
    """Integers [n,K] as words [n,ceil(K * bits / 32)], from the lowest bit on."""
    stream = (values[..., None] >> np.arange(bits)) & 1
    flat = stream.reshape(len(values), -1).astype(np.uint8)
    padded = np.pad(flat, ((0, 0), (0, -flat.shape[1] % 32)))
    return np.packbits(padded, axis=1, bitorder="little").view(np.int32)


class Weight:
    """Random integers [N,K] with zeros and scales [N,groups]."""

    def __init__(
        self, rows: int, columns: int, group: int, bits: int, *, sym: bool = False, seed: int = 0
    ) -> None:
        rng, self.bits = np.random.default_rng(seed), bits
        count = -(-columns // group)
        self.q = rng.integers(0, 1 << bits, (rows, columns))
        self.zeros = rng.integers(0, 1 << bits, (rows, count))
        if sym:
            self.zeros[:] = 1 << (bits - 1)
        self.scales = (rng.random((rows, count)) * 0.1 / (1 << bits)).astype(np.float16)
        self.of_columns = np.arange(columns) // group

    def shuffled(self) -> "Weight":
        """With the groups' columns anywhere."""
        self.of_columns = np.random.default_rng(1).permutation(self.of_columns)
        return self

    @property
    def dequantized(self) -> NDArray[np.float32]:
        zeros, scales = self.zeros[:, self.of_columns], self.scales[:, self.of_columns]
        return (self.q - zeros).astype(np.float32) * scales.astype(np.float32)

    def awq(self, stem: str) -> Arrays:
        def words(values: NDArray[Any]) -> NDArray[np.int32]:
            eights = values.reshape(len(values), -1, 8)[..., AWQ_ORDER]
            return packed(eights.reshape(len(values), -1), 4)

        return {
            f"{stem}.qweight": words(self.q.T),
            f"{stem}.qzeros": words(self.zeros.T),
            f"{stem}.scales": np.ascontiguousarray(self.scales.T),
        }

    def gptq(self, stem: str, less: int = 1) -> Arrays:
        """less: 1 for the first version, 0 for the second. GPTQModel subtracts from whole words."""
        if 8 % self.bits:
            zeros = packed((self.zeros.T - less) & ((1 << self.bits) - 1), self.bits)
        else:
            ones = less * (0xFFFFFFFF // ((1 << self.bits) - 1))
            zeros = (packed(self.zeros.T, self.bits).view(np.uint32) - np.uint32(ones)).view("<i4")
        return {
            f"{stem}.qweight": np.ascontiguousarray(packed(self.q, self.bits).T),
            f"{stem}.qzeros": zeros,
            f"{stem}.scales": np.ascontiguousarray(self.scales.T),
            f"{stem}.g_idx": self.of_columns.astype(np.int32),
        }


def quantize(model: Path, config: dict[str, Any], parts: Any) -> dict[str, NDArray[np.float32]]:
    """Give a checkpoint's linear layers random integers, in place. Returns their weights.

    parts: makes a weight's parts, by the shape and the name.
    """
    file, dequantized = model / "model.safetensors", {}
    tensors = load_file(file)
    for name in [name for name in tensors if "_proj.weight" in name]:
        rows, columns = tensors.pop(name).shape
        made, dequantized[name] = parts(name.removesuffix(".weight"), rows, columns)
        tensors |= made
    save_file(tensors, file)
    of_model = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(of_model | {"quantization_config": config}))
    return dequantized


def rows_of_words(weight: Weight, stem: str, *, sym: bool = False) -> Arrays:
    """compressed-tensors' pack-quantized; zeros are packed along the rows."""
    made = {
        f"{stem}.weight_packed": packed(weight.q, weight.bits),
        f"{stem}.weight_scale": weight.scales,
        f"{stem}.weight_shape": np.array(weight.q.shape),
    }
    if not sym:
        zeros = np.ascontiguousarray(packed(weight.zeros.T, weight.bits).T)
        made[f"{stem}.weight_zero_point"] = zeros
    return made


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


class Fp4:
    """Random floats of 4 bits [N,K] with a scale for each `block` columns."""

    def __init__(self, rows: int, columns: int, block: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.places = rng.integers(0, 16, (rows, columns)).astype(np.uint8)
        self.block, self.shape = block, (rows, columns // block)
        self.e4m3 = rng.uniform(1, 100, self.shape).astype(ml_dtypes.float8_e4m3fn)
        self.powers = rng.integers(115, 125, self.shape).astype(np.uint8)

    @property
    def bytes(self) -> NDArray[np.uint8]:
        """Two values each, the first in the low half."""
        return self.places[:, ::2] | self.places[:, 1::2] << 4

    def dequantized(self, scales: NDArray[np.float32]) -> NDArray[np.float32]:
        return E2M1[self.places] * scales.repeat(self.block, axis=1)


def opened(parts: Arrays, config: dict[str, Any], folder: Path) -> Tensor:
    save_file(parts, folder / "x.safetensors")
    quantization = read_quantization({"quantization_config": config})
    assert quantization
    return quantization.tensors(read_header(folder / "x.safetensors"))["x.weight"]


def values(tensor: Tensor, most: int = 1 << 20) -> NDArray[np.float32]:
    return np.concatenate(list(blocks(tensor, most=most))).reshape(tensor.shape)
