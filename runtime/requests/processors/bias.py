"""Adds a given number to the logits of given tokens."""

from collections.abc import Mapping

import numpy as np

from snapexport.runtime.engine.predictions import Logits
from snapexport.runtime.requests.processors.processor import Answer, LogitProcessor


class Bias(LogitProcessor):
    """`logit_bias`, by token."""

    def __init__(self, bias: Mapping[int, float]) -> None:
        self._tokens = np.array(list(bias), np.int64)
        self._bias = np.array(list(bias.values()), np.float32)

    @classmethod
    def of(cls, answer: Answer) -> "Bias | None":
        """None where there is no bias."""
        return cls(answer.params.logit_bias) if answer.params.logit_bias else None

    def apply(self, logits: Logits) -> None:
        logits[self._tokens] += self._bias
