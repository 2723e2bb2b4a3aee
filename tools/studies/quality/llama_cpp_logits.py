"""Writes the log likelihoods of texts by llama.cpp, in an environment that has llama-cpp-python.

    python -m tools.studies.quality.llama_cpp_logits SOURCE FORM MODEL TEXTS.npy OUT.npy

MODEL is made from SOURCE in FORM (such as Q4_0) if it is missing.
"""

import ctypes
import sys
from collections.abc import Sequence
from pathlib import Path

import llama_cpp
import numpy as np
from numpy.typing import NDArray

THREADS = 2


def quantize(source: Path, form: str, out: Path) -> None:
    """With llama.cpp's defaults."""
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.nthread = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{form}"), THREADS
    if llama_cpp.llama_model_quantize(
        str(source).encode(), str(out).encode(), ctypes.byref(params)
    ):
        raise RuntimeError(f"llama.cpp did not quantize {source}")


class Model:
    """A model and its context. Without kernels for AMX: they crash where a guest may not use it."""

    def __init__(self, file: str, length: int) -> None:
        model = llama_cpp.llama_model_default_params()
        model.use_extra_bufts = False
        self._model = llama_cpp.llama_model_load_from_file(file.encode(), model)
        context = llama_cpp.llama_context_default_params()
        context.n_ctx = context.n_batch = context.n_ubatch = length
        context.n_threads = context.n_threads_batch = THREADS
        self._context = llama_cpp.llama_init_from_model(self._model, context)
        self._memory = llama_cpp.llama_get_memory(self._context)
        vocabulary = llama_cpp.llama_model_get_vocab(self._model)
        self._tokens = llama_cpp.llama_vocab_n_tokens(vocabulary)
        self._batch = llama_cpp.llama_batch_init(length, 0, 1)

    def logits(self, text: Sequence[int]) -> NDArray[np.float32]:
        """After each token [T,V]."""
        llama_cpp.llama_memory_clear(self._memory, True)
        batch = self._batch
        batch.n_tokens = len(text)
        for at, token in enumerate(text):
            batch.token[at], batch.pos[at], batch.logits[at] = token, at, 1
            batch.n_seq_id[at], batch.seq_id[at][0] = 1, 0
        if status := llama_cpp.llama_decode(self._context, batch):
            raise RuntimeError(f"llama_decode gave {status}")
        found = llama_cpp.llama_get_logits(self._context)
        return np.ctypeslib.as_array(found, (len(text), self._tokens))


def main() -> None:
    """fp16 [passages, T - 1, V]."""
    source, form, model, given, out = sys.argv[1:]
    if not Path(model).is_file():
        quantize(Path(source), form, Path(model))
    texts = np.load(given)
    made, rows = Model(model, texts.shape[1]), []
    for text in texts:
        logits = made.logits(text[:-1].tolist())
        shifted = logits - logits.max(-1, keepdims=True)
        shifted -= np.log(np.exp(shifted).sum(-1, keepdims=True))
        rows.append(shifted.astype(np.float16))
    np.save(out, np.stack(rows))


if __name__ == "__main__":
    main()
