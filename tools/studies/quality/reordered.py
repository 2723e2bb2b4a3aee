"""Writes a GGUF file in fp32 with the model's channels in another order.

The model computes the same, but blocks of 32 weights no longer are those that the file was rounded
in: rounding it again costs what rounding costs. Knows the architectures llama and qwen2.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, GGUFWriter, dequantize
from numpy.typing import NDArray

from snapexport.builder.staging import staged

Order = NDArray[np.int64]
Orders = dict[str, tuple[Order, ...]]
"""By the end of a tensor's name: the order of each of its axes."""


_TYPE = "general.file_type"


def reordered(file: Path, folder: Path) -> Path:
    """The file below `folder`; made if missing."""
    out = folder / "reordered" / f"{file.stem.split('.Q')[0]}.F32.gguf"
    if not out.is_file():
        with staged(out.parent, overwrite=False) as unfinished:
            _write(GGUFReader(file), unfinished / out.name)
    return out


def _write(reader: Any, out: Path) -> None:
    fields = {name: field.contents() for name, field in reader.fields.items()}
    writer = GGUFWriter(out, fields["general.architecture"])
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name not in ("general.architecture", _TYPE):
            writer.add_key_value(name, fields[name], field.types[0], *field.types[1:])

    def size(of: str) -> int:
        return int(fields[f"{fields['general.architecture']}.{of}"])

    rng = np.random.default_rng(0)
    width = rng.permutation(size("embedding_length"))
    heads, kv_heads = size("attention.head_count"), size("attention.head_count_kv")
    mlp = size("feed_forward_length")
    layers = [dict(_layer(rng, width, mlp, heads, kv_heads)) for _ in range(size("block_count"))]
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, _moved(values, tensor.name, width, layers))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _moved(
    values: NDArray[np.float32], name: str, width: Order, layers: list[Orders]
) -> NDArray[np.float32]:
    """A tensor whose every axis is in the new order."""
    if name.startswith("blk."):
        _, layer, rest = name.split(".", 2)
        orders = layers[int(layer)][rest]
    elif name in ("token_embd.weight", "output.weight"):
        orders = np.arange(len(values)), width
    else:
        orders = {"output_norm.weight": (width,)}[name]
    return np.ascontiguousarray(values[np.ix_(*orders)])


def _layer(
    rng: np.random.Generator, width: Order, hidden: int, heads: int, kv_heads: int
) -> Iterator[tuple[str, tuple[Order, ...]]]:
    """KV heads with their query heads, the values of each KV head, and the MLP change places."""
    size, group = len(width) // heads, heads // kv_heads
    of_heads = rng.permutation(kv_heads)
    q = np.arange(heads * size).reshape(kv_heads, group, size)[of_heads]
    k = np.arange(kv_heads * size).reshape(kv_heads, size)[of_heads]
    inside = np.stack([rng.permutation(size) for _ in range(kv_heads)])
    v = np.take_along_axis(k, inside, 1)
    read = np.take_along_axis(q, inside[:, None].repeat(group, 1), 2)
    mlp = rng.permutation(hidden)
    for name, rows in {"attn_q": q, "attn_k": k, "attn_v": v}.items():
        yield f"{name}.weight", (rows.ravel(), width)
        yield f"{name}.bias", (rows.ravel(),)
    yield "attn_output.weight", (width, read.ravel())
    for name in ("ffn_gate", "ffn_up"):
        yield f"{name}.weight", (mlp, width)
    yield "ffn_down.weight", (width, mlp)
    for name in ("attn_norm", "ffn_norm"):
        yield f"{name}.weight", (width,)
