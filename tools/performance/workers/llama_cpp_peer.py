"""llama.cpp through llama-cpp-python, flash attention on, its own F16 cache.

Long contexts are not prefilled: the cache of a short prompt is loaded again and again, and moved to
the positions behind.
"""

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .gguf_file import written

PACKAGES = ("llama-cpp-python", "gguf")

ROOM = 256
"""Positions beyond the longest context."""

_BLOCK = 1024
"""Tokens that are prefilled for a context."""


def make(model: str, directory: str, weights: str, longest: int, threads: int) -> "LlamaCpp":
    """A GGUF file of these weights."""
    path = written(Path(model), Path(directory), weights, threads)
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
        self.step()  # turns the keys that were moved

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

    def _decode(self, tokens: Sequence[int]) -> None:
        ids = (self._api.llama_token * len(tokens))(*tokens)
        status = self._api.llama_decode(self._context, self._api.llama_batch_get_one(ids, len(ids)))
        if status:
            raise RuntimeError(f"llama_decode gave {status}")
        self._api.llama_synchronize(self._context)
