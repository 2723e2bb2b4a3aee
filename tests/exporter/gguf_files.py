"""Small GGUF files of random models, written as llama.cpp's converter writes them."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind
from numpy.typing import NDArray
from safetensors.numpy import load_file
from tokenizers import pre_tokenizers
from transformers import AutoConfig, PretrainedConfig

from tests.oracle import checkpoints

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
TOKENS = [*ALPHABET, "he", "Ġt", "<s>", "</s>", "<|end|>"]
MERGES = ["h e", "Ġ t"]
END, END_OF_TURN = TOKENS.index("</s>"), TOKENS.index("<|end|>")
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}<|end|>{% endfor %}"

_PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
_GEMMA = {"head_dim": 256, "query_pre_attn_scalar": 256, "num_attention_heads": 2}
_GEMMA |= {"num_key_value_heads": 1}
_CHANGES: dict[str, dict[str, Any]] = {
    "llama": {"rope_parameters": _PLAIN, "bos_token_id": TOKENS.index("<s>")},
    "qwen2": {},
    "qwen3": {"head_dim": 128},
    "gemma2": _GEMMA | {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    "gemma3": _GEMMA
    | {
        "num_hidden_layers": 6,
        "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
        "rope_parameters": {
            "sliding_attention": _PLAIN,
            "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        },
    },
}
NAMES = tuple(_CHANGES)


def make(
    name: str,
    folder: Path,
    kind: Kind = Kind.F32,
    *,
    tokenizer: bool = True,
    spoil: Callable[[gguf.GGUFWriter], object] = id,
    **changes: Any,
) -> Path:
    """Write NAME.gguf of a random model.

    kind: of matrices whose rows have whole blocks. spoil: changes what is going to be written.
    """
    size = {"vocab_size": len(TOKENS), "intermediate_size": 96, "eos_token_id": END}
    model = checkpoints.make(name, folder / f"{name}.model", **size | _CHANGES[name] | changes)
    config = AutoConfig.from_pretrained(model)
    out = folder / f"{name}.gguf"
    writer = gguf.GGUFWriter(out, name)
    _write_config(writer, config, name)
    if tokenizer:
        _write_tokenizer(writer)
        _write_texts(writer)
    for stored, values in _stored(model, config, name):
        whole = values.ndim > 1 and values.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0] == 0
        of = kind if whole else Kind.F32
        writer.add_tensor(stored, gguf.quantize(values, of), raw_dtype=of)
    spoil(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def _write_config(writer: gguf.GGUFWriter, config: PretrainedConfig, name: str) -> None:
    writer.add_name("a small model")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    if name == "llama":
        writer.add_vocab_size(config.vocab_size)
        writer.add_rope_dimension_count(config.head_dim)
    if name.startswith("gemma"):
        writer.add_sliding_window(config.sliding_window)
    if name.startswith(("gemma", "qwen3")):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)


def _write_tokenizer(writer: gguf.GGUFWriter) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(TOKENS)
    writer.add_token_types([1] * (len(TOKENS) - 3) + [3] * 3)
    writer.add_token_merges(MERGES)


def write_pieces(writer: gguf.GGUFWriter) -> None:
    """SentencePiece's tokenizer of as many tokens, as Llama 2 and Gemma have it, for `spoil`."""
    pieces = ["<unk>", "▁", "t", "h", "e", "he", "the", "▁the", "m", "漢"]
    pieces += [f"<0x{byte:02X}>" for byte in range(len(TOKENS) - len(pieces) - 3)] + TOKENS[-3:]
    bytes_ = len(pieces) - 13
    for key in ("model", "pre", "tokens", "token_type", "merges"):
        writer.kv_data[0].pop(f"tokenizer.ggml.{key}")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(pieces)
    writer.add_token_scores([-float(index) for index in range(len(pieces))])
    writer.add_token_types([2] + [1] * 9 + [6] * bytes_ + [3] * 3)


def _write_texts(writer: gguf.GGUFWriter) -> None:
    writer.add_bos_token_id(TOKENS.index("<s>"))
    writer.add_eos_token_id(END)
    writer.add_eot_token_id(END_OF_TURN)
    writer.add_add_bos_token(True)
    writer.add_chat_template(TEMPLATE)


def _stored(
    model: Path, config: PretrainedConfig, name: str
) -> Iterable[tuple[str, NDArray[np.float32]]]:
    (number,) = (one for one, known in gguf.MODEL_ARCH_NAMES.items() if known == name)
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for tensor, values in load_file(model / "model.safetensors").items():
        stored = names.get_name(tensor, (".weight", ".bias"))
        assert stored is not None, tensor
        if name == "llama" and (of := tensor.split(".")[-2]) in heads:
            values = _interleaved(values, heads[of])
        if name.startswith("gemma") and tensor.endswith("norm.weight"):
            values = values + 1
        yield stored, values


def _interleaved(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Rows [head, half, pair] -> [head, pair, half]."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def set_to(**entries: object) -> Callable[[gguf.GGUFWriter], object]:
    """Metadata as numbers and texts; None removes an entry. `__` stands for a dot."""

    def spoil(writer: gguf.GGUFWriter) -> None:
        for name, value in entries.items():
            key = name.replace("__", ".")
            writer.kv_data[0].pop(key, None)
            if isinstance(value, str):
                writer.add_string(key, value)
            elif isinstance(value, bool):
                writer.add_bool(key, value)
            elif isinstance(value, float):
                writer.add_float32(key, value)
            elif isinstance(value, int):
                writer.add_uint32(key, value)
            elif isinstance(value, list):
                writer.add_array(key, value)

    return spoil
