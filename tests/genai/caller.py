"""Calls a joined graph in plain ONNX Runtime as onnxruntime-genai does.

Pasts and presents are one buffer, zero at the start, and positions are counted by the tokens that
the caller has: also by one that it sampled and did not run.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

Array = NDArray[Any]
_TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16}


class Caller:
    """One sequence of tokens. tokens: those of the sequence so far, run or not."""

    def __init__(self, folder: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        self._session = onnxruntime.InferenceSession(folder / "model.onnx", options)
        self.tokens: list[int] = []
        caches = self._session.get_inputs()[2:]
        self.held = {
            one.name: onnxruntime.OrtValue.ortvalue_from_numpy(
                np.zeros(one.shape, _TYPES[one.type])
            )
            for one in caches
        }

    def append(self, tokens: Sequence[int]) -> Array:
        """Run tokens -> logits [V] after the last."""
        first = len(self.tokens)
        self.tokens += tokens
        binding = self._session.io_binding()
        positions = np.arange(first, len(self.tokens))
        for name, values in (("input_ids", np.array(tokens)), ("position_ids", positions)):
            binding.bind_cpu_input(name, values[None].astype(np.int64))
        for name, value in self.held.items():
            binding.bind_ortvalue_input(name, value)
            binding.bind_ortvalue_output(name.replace("past_key_values", "present"), value)
        binding.bind_output("logits")
        self._session.run_with_iobinding(binding)
        (logits,) = (value for value in binding.get_outputs() if len(value.shape()) == 3)
        found: Array = logits.numpy()
        assert found.shape[:2] == (1, 1)
        return found[0, 0]

    def sample(self, token: int) -> None:
        """Count a token that is not run."""
        self.tokens.append(token)

    def rewind_to(self, length: int) -> None:
        """Forget the tokens after the first `length`."""
        del self.tokens[length:]

    def cache(self, name: str) -> Array:
        """A copy of a tensor that is held."""
        found: Array = self.held[name].numpy().copy()
        return found
