"""Writes pseudo tokens: what a model says after a prompt, so that their queries vote.

They are decoded from the batch slot, which is filled by the prompt's own queries before and by
theirs afterwards.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapexport.contract.pieces import CHUNK, Piece
from snapexport.methods.pseudo.spec import PIECE
from snapexport.runtime.engine.backend import Buffer
from snapexport.runtime.engine.loaded import Loaded
from snapexport.runtime.engine.method import MethodRun
from snapexport.runtime.engine.predictions import Prediction
from snapexport.runtime.engine.takers.chunks import Chunks
from snapexport.runtime.engine.takers.taker import Takers


class PseudoTokens:
    """Greedy tokens after a prompt, whether an end token is among them or not."""

    hidden_states: Buffer | None = None

    def __init__(self, loaded: Loaded, chunks: Chunks) -> None:
        self._chunks, self._decode, self._rows = chunks, loaded.decode, loaded.rows
        self._count = loaded.manifest.geometry.after_prompt
        self._last_position = loaded.limits.positions - 1

    @classmethod
    def of(cls, loaded: Loaded, takers: Takers) -> "PseudoTokens | None":
        """None where nothing is compressed, and where no prompt is taken."""
        if "compress" not in loaded.graphs.names:
            return None
        chunks = takers[CHUNK]
        assert isinstance(chunks, Chunks), "a single shot writes no pseudo tokens"
        return cls(loaded, chunks)

    def take(
        self, slot: int, prompt: tuple[int, ...], piece: Piece, temperature: float
    ) -> Prediction:
        """Fill the slot by their vote; by the prompt's own if their logits are not finite."""
        length = len(prompt)
        self._chunks.fill(slot, length, length)
        for follower in (self._rows, *self._rows.followers):
            follower.fill(slot, length)
        tokens = self.write(slot, self._chunks.after_prompt)
        if tokens:
            self._chunks.append(prompt, tokens, whole_cache=False)
        self._chunks.fill(slot, length, length + len(tokens))
        return self._chunks.after_prompt

    def write(self, slot: int, first: Prediction) -> list[int]:
        """Return the tokens, of which `first` predicts the first one; the others are decoded.

        An empty list where logits are not finite. The batch slot is written over, and has to be
        filled again. What the other slots hold stays: each writes where its own next token will.
        """
        tokens: list[int] = []
        prediction = first
        while prediction.is_finite:
            tokens.append(prediction.likeliest)
            if len(tokens) == self._count:
                return tokens
            prediction = self._decode_token(slot, tokens)
        return []

    def _decode_token(self, slot: int, tokens: list[int]) -> Prediction:
        """Feed the last token. The graph runs all batch slots up to the last one in use."""
        in_use = range(int(np.flatnonzero(self._rows.held[0])[-1]) + 1)
        input_ids = np.zeros(len(in_use), np.int64)
        prompt_length, position_ids = self._rows.held[:, in_use]
        input_ids[slot] = tokens[-1]
        position_ids[slot] = prompt_length[slot] + len(tokens) - 1
        # A slot whose request has ended may be beyond the last position.
        position_ids = np.minimum(position_ids, self._last_position)
        prediction = self._decode.run(input_ids, position_ids, prompt_length)[slot]
        for other in set(in_use) - {slot}:
            for follower in self._rows.followers:
                follower.discard(other)
        return prediction

    def slot_positions(self, prompt_length: int) -> Mapping[str, NDArray[Any]]:
        """The positions after the prompt's own chunks: the same graph compresses."""
        return self._chunks.slot_positions(prompt_length)

    def clear(self) -> None:
        """Do nothing: there is no cache but the chunks'."""


class PseudoRun(MethodRun):
    """Pseudo tokens are decoded, and vote."""

    takers = ((PIECE, PseudoTokens.of),)


RUN = PseudoRun()
