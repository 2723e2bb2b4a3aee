"""Writes pseudo tokens: what a model says after a prompt, so that their queries vote.

They are decoded from the batch slot that the prompt has just filled, which is filled again by their
vote. Knows no prompt cache and no request.
"""

import numpy as np

from snapexport.runtime.engine.decode_steps import DecodeSteps, Integers
from snapexport.runtime.engine.graph_set import Limits
from snapexport.runtime.engine.predictions import Prediction
from snapexport.runtime.requests.sampling import can_sample


class PseudoTokens:
    """Greedy tokens behind a prompt, an end token among them or not."""

    def __init__(self, decode: DecodeSteps, held: Integers, limits: Limits) -> None:
        """held: int64 [2,B], the executor's: prompt length and next position of each batch slot, 0
        where it is idle."""
        self._decode, self._held, self._limits = decode, held, limits

    def write(self, slot: int, first: Prediction) -> list[int]:
        """Return the tokens, of which `first` predicts the first one; the others are decoded.

        An empty list where logits are not finite. The batch slot is written over, and has to be
        filled again. What the other slots hold stays: each writes where its own next token will.
        """
        tokens: list[int] = []
        prediction = first
        while can_sample(prediction):
            tokens.append(prediction.likeliest)
            if len(tokens) == self._limits.pseudo_tokens:
                return tokens
            prediction = self._decoded(slot, tokens)
        return []

    def _decoded(self, slot: int, tokens: list[int]) -> Prediction:
        """Feed the last token. The graph runs all batch slots up to the last one in use."""
        in_use = range(int(np.flatnonzero(self._held[0])[-1]) + 1)
        input_ids = np.zeros(len(in_use), np.int64)
        prompt_length, position_ids = self._held[:, in_use]
        input_ids[slot] = tokens[-1]
        position_ids[slot] = prompt_length[slot] + len(tokens) - 1
        last = self._limits.positions - 1  # a slot whose request has ended may be beyond it
        prediction = self._decode.run(input_ids, np.minimum(position_ids, last), prompt_length)[
            slot
        ]
        if self._decode.places:
            for other in set(in_use) - {slot}:
                self._decode.places.accept(other, 0, 1)
        return prediction
