"""Says what an answer's caches hold of its prompt, as parts of the prompt's text.

Knows no HTTP.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

Parts = list[tuple[str, int]]
"""Texts that join to the prompt, each with the percentage of the KV heads that hold it."""


@dataclass(frozen=True, eq=False)
class PromptText:
    """A prompt's text. offsets: the characters [start, end) of each token, int64 [L,2]."""

    text: str
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, text: str, tokenizer: Tokenizer) -> "PromptText":
        """The text of a chat, which the tokenizer adds nothing to."""
        (encoded,) = tokenizer.encode_batch([text], add_special_tokens=False)
        return cls(text, np.array(encoded.offsets, np.int64).reshape(-1, 2))

    def parts(self, shares: NDArray[np.float32]) -> Parts:
        """The text in parts that are held alike. shares: of each token, [L].

        A character of several tokens is held as the best of them; one of none as the one before.
        """
        starts, lengths = self.offsets[:, 0], np.diff(self.offsets)[:, 0]
        before = np.cumsum(lengths) - lengths
        places = np.arange(lengths.sum()) + np.repeat(starts - before, lengths)
        held = np.full(len(self.text), -1, np.int64)
        np.maximum.at(held, places, np.repeat(np.rint(100 * shares).astype(np.int64), lengths))
        known = np.where(held >= 0, np.arange(len(held)), 0)
        held = np.maximum(held[np.maximum.accumulate(known)], 0)
        edges = [0, *(np.flatnonzero(np.diff(held)) + 1).tolist(), len(held)]
        return [
            (self.text[start:end], int(held[start]))
            for start, end in pairwise(edges)
            if start < end
        ]
