"""A Llama checkpoint as GGUF, without a vocabulary: F32, or quantized by llama.cpp itself.

Names and metadata are those of the `gguf` package; llama.cpp turns neighbouring pairs of a head's
elements where transformers turns halves, so that rows of Q and K change places.
"""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_TURNED = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}


def written(model: Path, directory: Path, weights: str, threads: int) -> Path:
    """The file of these weights: F32 or Q4_0; made where it is missing."""
    directory.mkdir(parents=True, exist_ok=True)
    out = directory / f"{model.name}.{weights}.gguf"
    unfinished = out.with_name(out.name + ".partial")
    if not out.is_file():
        if weights == "F32":
            _write_f32(model, unfinished)
        else:
            _quantize(written(model, directory, "F32", threads), unfinished, weights, threads)
        unfinished.rename(out)
    return out


def _quantize(source: Path, out: Path, weights: str, threads: int) -> None:
    import llama_cpp

    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.nthread = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{weights}"), threads
    status = llama_cpp.llama_model_quantize(
        str(source).encode(), str(out).encode(), ctypes.byref(params)
    )
    if status:
        raise RuntimeError(f"llama_model_quantize gave {status}")


def _write_f32(model: Path, out: Path) -> None:
    import gguf
    from safetensors.numpy import load_file

    config = json.loads((model / "config.json").read_text())
    writer = gguf.GGUFWriter(out, "llama")
    _write_metadata(writer, config)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    for name, tensor in load_file(model / "model.safetensors").items():
        for projection, heads in _TURNED.items():
            if projection in name:
                tensor = _interleaved(tensor, config[heads])
        writer.add_tensor(names.get_name(name, (".weight",)), tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_metadata(writer: Any, config: dict[str, Any]) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")


def _interleaved(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Rows [head, half, pair] -> [head, pair, half]."""
    rows, columns = weight.shape
    halves = weight.reshape(heads, 2, rows // heads // 2, columns)
    return halves.swapaxes(1, 2).reshape(rows, columns)
