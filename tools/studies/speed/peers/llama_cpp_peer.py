"""llama.cpp through llama-cpp-python, flash attention on, its own F16 cache.

Long contexts are not prefilled: the cache of a short prompt is loaded again and again, and moved to
the positions behind. The checkpoint is written as GGUF without a vocabulary: F32, or quantized by
llama.cpp itself. llama.cpp rotates neighbouring pairs of a head's elements where transformers
rotates halves, so rows of Q and K change places.
"""

import ctypes
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tools.studies.speed.peers.process import Scene, Variant

PACKAGES = ("llama-cpp-python", "gguf")

ROOM = 256
"""Positions beyond the longest context."""

_BLOCK = 1024
"""Tokens that are prefilled for a context."""

_METADATA = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "head_count": "num_attention_heads",
    "head_count_kv": "num_key_value_heads",
    "key_length": "head_dim",
    "value_length": "head_dim",
    "rope_dimension_count": "head_dim",
    "layer_norm_rms_eps": "rms_norm_eps",
    "vocab_size": "vocab_size",
}
"""GGUF's names of what config.json says."""

_ROTATED = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}


def variants(scene: "Scene") -> Iterator["Variant"]:
    """Weights of 32 to 4 bits, and the file that the checkpoint was made from."""
    from tools.studies.speed.peers.process import Variant

    common = {"model": scene.model, "directory": scene.files, "threads": scene.threads}
    files = {"F32": 32, "F16": 16, "Q8_0": 8, "Q4_0": 4}
    if scene.gguf:
        files[scene.gguf] = 4
    for weights, bits in files.items():
        options = common | {"longest": max(scene.contexts), "weights": weights, "gguf": scene.gguf}
        name = f"llama.cpp {weights if weights != scene.gguf else 'on the file itself'}"
        yield Variant(name, bits, scene.peers_python, __file__, options, scene.contexts)


def make(
    model: str, directory: str, weights: str, gguf: str | None, longest: int, threads: int
) -> "LlamaCpp":
    """Of these weights, or of the GGUF file."""
    path = Path(weights)
    if weights != gguf:
        path = written(Path(model), Path(directory), weights, gguf, threads)
    return LlamaCpp(path, longest + ROOM, threads)


class LlamaCpp:
    """One sequence, and a second one to load what the first is made of."""

    def __init__(self, path: Path, longest: int, threads: int) -> None:
        import llama_cpp

        self._api: Any = llama_cpp
        llama_cpp.llama_backend_init()
        model = llama_cpp.llama_model_default_params()
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), model)
        context = llama_cpp.llama_context_default_params()
        context.n_ctx, context.n_seq_max, context.kv_unified = longest, 2, True
        context.n_batch, context.n_ubatch = longest, 512
        context.n_threads = context.n_threads_batch = threads
        context.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
        self._context: Any = llama_cpp.llama_init_from_model(self._model, context)
        if not self._context:
            raise RuntimeError("llama.cpp made no context")
        self._memory = llama_cpp.llama_get_memory(self._context)

    def first_token(self, tokens: Sequence[int]) -> None:
        self._api.llama_memory_clear(self._memory, False)
        self._decode(tokens)

    def fill(self, context: int) -> None:
        length = context - 1
        self.first_token([1 + n % 100 for n in range(min(length, _BLOCK))])
        size = self._api.llama_state_seq_get_size(self._context, 0)
        state = (ctypes.c_uint8 * size)()
        self._api.llama_state_seq_get_data(self._context, state, size, 0)
        for start in range(_BLOCK, length, _BLOCK):
            self._append(state, size, start)
        self._api.llama_memory_seq_rm(self._memory, 0, length, -1)
        self.step()  # rotates the keys that were moved

    def _append(self, state: Any, size: int, start: int) -> None:
        """The same tokens' cache once more, from position `start` on."""
        api, memory = self._api, self._memory
        if not api.llama_state_seq_set_data(self._context, state, size, 1):
            raise RuntimeError("llama.cpp has no room for the sequence")
        api.llama_memory_seq_add(memory, 1, 0, -1, start)
        api.llama_memory_seq_cp(memory, 1, 0, -1, -1)
        api.llama_memory_seq_rm(memory, 1, -1, -1)

    def step(self) -> None:
        self._decode([1])

    def stream(self, tokens: Sequence[int]) -> Iterator[int]:
        self.first_token(tokens)
        vocabulary = self._api.llama_vocab_n_tokens(self._api.llama_model_get_vocab(self._model))
        while True:
            logits = self._api.llama_get_logits_ith(self._context, -1)
            token = int(np.ctypeslib.as_array(logits, (vocabulary,)).argmax())
            yield token
            self._decode([token])

    def _decode(self, tokens: Sequence[int]) -> None:
        ids = (self._api.llama_token * len(tokens))(*tokens)
        status = self._api.llama_decode(self._context, self._api.llama_batch_get_one(ids, len(ids)))
        if status:
            raise RuntimeError(f"llama_decode gave {status}")
        self._api.llama_synchronize(self._context)


def written(model: Path, directory: Path, weights: str, gguf: str | None, threads: int) -> Path:
    """The file of these weights: F32, F16, Q8_0 or Q4_0; made where it is missing.

    llama.cpp makes all but F32 of the GGUF file, if there is one.
    """
    directory.mkdir(parents=True, exist_ok=True)
    out = directory / f"{model.name}.{weights}.gguf"
    unfinished = out.with_name(out.name + ".partial")
    if not out.is_file():
        if weights == "F32":
            _write_f32(model, unfinished)
        else:
            source = Path(gguf) if gguf else written(model, directory, "F32", gguf, threads)
            _quantize(source, unfinished, weights, threads)
        unfinished.rename(out)
    return out


def _quantize(source: Path, out: Path, weights: str, threads: int) -> None:
    import llama_cpp

    params = llama_cpp.llama_model_quantize_default_params()
    params.allow_requantize = True
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
    for add, name in _METADATA.items():
        getattr(writer, f"add_{add}")(config[name])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_tokenizer_model("none")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    for name, tensor in load_file(model / "model.safetensors").items():
        for projection, heads in _ROTATED.items():
            if projection in name:
                tensor = _interleaved(tensor, config[heads])
        stored = names.get_name(name, (".weight",))
        assert stored is not None, name
        writer.add_tensor(stored, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _interleaved(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Rows [head, half, pair] -> [head, pair, half]."""
    rows, columns = weight.shape
    halves = weight.reshape(heads, 2, rows // heads // 2, columns)
    return halves.swapaxes(1, 2).reshape(rows, columns)
