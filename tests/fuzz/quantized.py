"""Mutated parts and configs of quantized weights, and random blocks of GGUF's types."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.fuzz.children import WronglyAcceptedError
from tests.fuzz.mutations import mutated
from tests.fuzz.outcomes import OTHER, SAME

FILE, CONFIG = "x.safetensors", "config.json"
ROWS, COLUMNS = 64, 128
Arrays = dict[str, NDArray[Any]]
DTYPES = ("int8", "uint8", "int32", "int64", "float16", "float32", "float64", "bool")


class Quantized:
    """Of each method a matrix; of each case one method."""

    name = "quantized"

    def __init__(self, work: Path) -> None:
        from tests.exporter.quantized_integers import Fp4, Weight, rows_of_words
        from tests.exporter.weights.readers import test_bitsandbytes as bnb
        from tests.exporter.weights.readers import test_compressed_tensors as ct
        from tests.exporter.weights.readers.test_awq_gptq import AWQ, GPTQ

        weight, fp4 = Weight(ROWS, COLUMNS, 32, 4), Fp4(ROWS, COLUMNS, 16)
        ordered = Weight(ROWS, COLUMNS, 32, 4).shuffled()
        tables, _ = bnb.of_4_bits(ROWS, COLUMNS, nested=True)
        bytes_: Arrays = {"x.weight": weight.q.astype(np.int8)}
        scales = np.ones((ROWS, 1), np.float32)
        fp8: Arrays = {"x.weight": fp4.e4m3.repeat(16, axis=1), "x.weight_scale": scales}
        self._cases: list[tuple[dict[str, Any], Arrays]] = [
            (AWQ, weight.awq("x")),
            (GPTQ | {"sym": False, "dynamic": {"-:.*y": {}}}, ordered.gptq("x")),
            (ct.config(ct.ints()), rows_of_words(weight, "x")),
            (ct.config(ct.ints(-1, 8, symmetric=True)), bytes_ | {"x.weight_scale": scales}),
            (ct.config({"num_bits": 8, "type": "float", "strategy": "channel"}), fp8),
            (
                ct.NVFP4,
                {
                    "x.weight": fp4.bytes,
                    "x.weight_scale": fp4.e4m3,
                    "x.weight_scale_2": np.ones((), np.float32),
                },
            ),
            (bnb.OF_4, tables),
            (bnb.OF_8, bytes_ | {"x.SCB": scales[:, 0]}),
            ({"quant_method": "fp8", "weight_block_size": [32, 32]}, _blocks(fp8)),
            ({"quant_method": "fbgemm_fp8"}, fp8),
        ]
        self._whole = [
            _read(_quantization(config), *_saved(work, parts)) for config, parts in self._cases
        ]

    def mutate(self, rng: random.Random, directory: Path) -> str:
        """Write the parts and the config of one method."""
        place = rng.randrange(len(self._cases))
        config, parts = self._cases[place]
        parts, told = {name: one.copy() for name, one in parts.items()}, ""
        if rng.random() < 0.4:
            config, told = mutated(config, rng)
        for _ in range(rng.choice([0, 1, 1, 2]) or int(not told)):
            told += "; " + _spoiled(parts, rng)
        _saved(directory, parts)
        text = json.dumps({"place": place, "quantization_config": config})
        (directory / CONFIG).write_text(text, "utf-8", "surrogatepass")
        return f"{config.get('quant_method') if isinstance(config, dict) else config}: {told}"

    def judge(self, directory: Path) -> tuple[str, str]:
        """Read all values; a number that is none must not come out."""
        config = json.loads((directory / CONFIG).read_bytes().decode("utf-8", "surrogatepass"))
        quantization = _quantization(config["quantization_config"])
        with np.errstate(over="raise", invalid="raise", divide="raise"):
            read = _read(quantization, directory / FILE)
        for name, values in read.items():
            if not np.isfinite(values).all():
                raise WronglyAcceptedError(f"{name} has values that are no numbers")
        whole = self._whole[config["place"]]
        alike = read.keys() == whole.keys()
        if alike and all(np.array_equal(read[name], whole[name]) for name in whole):
            return SAME, ""
        return OTHER, "other values"


class GgufBlocks:
    """Random bytes as blocks of a type, against the package `gguf`."""

    name = "gguf-blocks"

    def __init__(self, work: Path) -> None:
        import gguf.quants  # noqa: F401

        from snapexport.exporter.weights.readers.gguf import KINDS

        self._names = sorted(KINDS.keys() - {"Q1_0"})  # which the library can't read

    def mutate(self, rng: random.Random, directory: Path) -> str:
        """Write rows of a type."""
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        name = rng.choice(self._names)
        elements, nbytes = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
        raw = np.frombuffer(rng.randbytes(4 * (256 // elements) * nbytes), np.uint8).copy()
        if rng.random() < 0.8:  # numbers whose exponents are not the highest
            raw &= rng.choice([0xBB, 0x3B, 0x33])
        (directory / name).write_bytes(raw.tobytes())
        return name

    def judge(self, directory: Path) -> tuple[str, str]:
        """Both dequantize to the same bits, unless a scale is no number."""
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

        from snapexport.exporter.read.gguf.header import StoredTensor
        from snapexport.exporter.read.gguf.tensors import GgufIntegers
        from snapexport.exporter.weights.readers.gguf import KINDS
        from snapexport.exporter.weights.tensor_file import blocks

        (file,) = directory.iterdir()
        kind, size = GGMLQuantizationType[file.name], file.stat().st_size
        stored = StoredTensor(int(kind), (4, 256), 0, size)
        _, nbytes = GGML_QUANT_SIZES[kind]
        weight = GgufIntegers(file, "one", stored, KINDS[file.name], nbytes)
        with np.errstate(over="raise", invalid="raise"):
            got = np.concatenate(list(blocks(weight, 1, 300)))
        rows = np.frombuffer(file.read_bytes(), np.uint8).reshape(4, -1)
        if not np.array_equal(got.view(np.uint32), dequantize(rows, kind).view(np.uint32).ravel()):
            raise WronglyAcceptedError("the library reads other values")
        return SAME, ""


def _quantization(config: Any) -> Any:
    from snapexport.errors import UserError
    from snapexport.exporter.weights.readers import read_quantization

    found = read_quantization({"quantization_config": config})
    if found is None:
        raise UserError("no quantization", "none")
    return found


def _saved(directory: Path, parts: Arrays) -> tuple[Path]:
    from safetensors.numpy import save_file

    save_file({name: np.ascontiguousarray(one) for name, one in parts.items()}, directory / FILE)
    return (directory / FILE,)


def _read(quantization: Any, file: Path) -> Arrays:
    from snapexport.exporter.weights.tensor_file import Calculated, blocks
    from snapexport.files.safetensors import read_header

    tensors = quantization.tensors(read_header(file))
    return {
        name: np.concatenate(list(blocks(one, 1, 1000)))
        for name, one in tensors.items()
        if isinstance(one, Calculated)
    }


def _blocks(fp8: Arrays) -> Arrays:
    return {"x.weight": fp8["x.weight"], "x.weight_scale_inv": np.ones((2, 4), np.float32)}


def _spoiled(parts: Arrays, rng: random.Random) -> str:
    name = rng.choice(sorted(parts))
    return rng.choice(WAYS)(parts, name, rng)


def _dropped(parts: Arrays, name: str, rng: random.Random) -> str:
    if len(parts) > 1:
        del parts[name]
    return f"{name} dropped"


def _renamed(parts: Arrays, name: str, rng: random.Random) -> str:
    new = rng.choice([name + "s", "y" + name[1:], name.rpartition(".")[0] or "x", "x.weight", "x"])
    parts[new] = parts.pop(name)
    return f"{name} is {new}"


def _reshaped(parts: Arrays, name: str, rng: random.Random) -> str:
    one = parts[name]
    ways = (
        [one[:-1], one[1:], one.T, one.reshape(-1), one[None], one[:0]] if one.ndim else [one[None]]
    )
    parts[name] = rng.choice(ways)
    return f"{name} has shape {parts[name].shape}"


def _recast(parts: Arrays, name: str, rng: random.Random) -> str:
    dtype = rng.choice(DTYPES)
    with np.errstate(all="ignore"):
        parts[name] = parts[name].astype(dtype)
    return f"{name} is {dtype}"


def _bytes(parts: Arrays, name: str, rng: random.Random) -> str:
    raw = bytearray(parts[name].tobytes())
    for _ in range(rng.choice([1, 4, 64])):
        if raw:
            raw[rng.randrange(len(raw))] = rng.choice([0, 1, 127, 128, 255, rng.randrange(256)])
    parts[name] = np.frombuffer(bytes(raw), parts[name].dtype).reshape(parts[name].shape)
    return f"bytes of {name}"


WAYS: tuple[Callable[[Arrays, str, random.Random], str], ...] = (
    *(_dropped, _renamed, _reshaped, _recast),
    *(_bytes, _bytes),
)
