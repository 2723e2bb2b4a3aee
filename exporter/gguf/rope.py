"""Reads how a GGUF file scales RoPE: by its metadata, or by a tensor of factors (Llama 3.1)."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapexport.errors import UserError
from snapexport.exporter.gguf.cursor import Value
from snapexport.exporter.gguf.keys import ORIGINAL, SCALING

_KINDS = ("linear", "yarn")
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LLAMA3_TRAINED = 8192
"""All models of Llama 3.1 and later have these."""


def rope_scaling(metadata: Mapping[str, Value]) -> dict[str, Any]:
    """transformers' fields, of the metadata without its prefix; empty: not scaled."""
    kind = metadata.get(f"{SCALING}.type", "none")
    if kind == "none":
        return {}
    if kind not in _KINDS:
        raise UserError(
            f"RoPE is scaled as '{kind!s:.100}'",
            f"these are read of a GGUF file: {', '.join(_KINDS)}. Else {ORIGINAL}",
        )
    scaling = {"rope_type": kind, "factor": metadata.get(f"{SCALING}.factor")}
    original = metadata.get(f"{SCALING}.original_context_length")
    if original is not None and kind == "yarn":
        scaling["original_max_position_embeddings"] = original
    return scaling


def llama3_scaling(factors: NDArray[np.float32], theta: float) -> dict[str, Any]:
    """The scaling that divides each pair's frequency by its factor. Raises UserError."""
    factor = float(factors.max())
    frequencies = theta ** -(np.arange(len(factors)) / len(factors))
    turns = _LLAMA3_TRAINED * frequencies / (2 * np.pi)
    low, high = _LLAMA3.values()
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    expected = 1 / ((1 - smooth) / factor + smooth)
    if not np.allclose(factors, expected, rtol=1e-4):
        raise UserError("its rope_freqs are not those of a Llama 3 model", ORIGINAL)
    return {
        "rope_type": "llama3",
        "factor": factor,
        **_LLAMA3,
        "original_max_position_embeddings": _LLAMA3_TRAINED,
    }
