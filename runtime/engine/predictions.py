"""Gives access to a run's logits and top tokens, and fetches from a GPU only what is read.

Knows no request: sampling.py chooses tokens.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from snapexport.contract import names
from snapexport.methods import table
from snapexport.runtime.arrays import Floats, Integers
from snapexport.runtime.engine.bound_graph import BoundGraph

Logits = Floats

FIRST = np.zeros(1, np.int64)
"""The row of a graph's only prediction."""

_OF_SEVERAL = 3
"""Dimensions of the logits of a step of several tokens."""


@dataclass(frozen=True, slots=True)
class TopTokens:
    """The N likeliest tokens, by descending logit; of equal logits the lower token comes first.

    tokens: int64 [N]. logits: float32 [N]. log_normalizer = logsumexp(logits / temperature) over
    the whole vocabulary. It is finite exactly if a token can be chosen.
    """

    tokens: Integers
    logits: Logits
    log_normalizer: float


class Prediction:
    """The logits and top tokens of one request's next token, in the executor's own buffers.

    top_tokens: None if the build has none.
    """

    def __init__(self, fetch: Callable[[], Logits], top_tokens: TopTokens | None = None) -> None:
        """fetch: returns the logits, float32 [V]."""
        self._fetch = fetch
        self.top_tokens = top_tokens

    @cached_property
    def logits(self) -> Logits:
        """float32 [V]. On a GPU with top tokens they are copied to the host when first read."""
        return self._fetch()

    @property
    def likeliest(self) -> int:
        """The likeliest token; of equal ones the lowest."""
        return int(self.top_tokens.tokens[0] if self.top_tokens else self.logits.argmax())

    @property
    def is_finite(self) -> bool:
        """Whether a token can be chosen: some logit is finite, and none is NaN or +inf."""
        if self.top_tokens:
            return math.isfinite(self.top_tokens.log_normalizer)
        logits = self.logits
        return bool(np.isfinite(logits[np.argmax(logits)]))  # argmax finds a NaN before any number

    def copied(self) -> "Prediction":
        """The same in memory of its own, which later runs leave alone."""
        logits, top = self.logits.copy(), self.top_tokens
        if top:
            top = replace(top, tokens=top.tokens.copy(), logits=top.logits.copy())
        return Prediction(lambda: logits, top)


class Predictions:
    """What a graph's latest run says of the first batch slots: by slot, or all logits at once."""

    def __init__(self, graph: BoundGraph, rows: Integers) -> None:
        """rows: of the graph's outputs, the row of each batch slot."""
        self._graph = graph
        self._rows = rows

    def __getitem__(self, slot: int) -> Prediction:
        (only,) = self.of_tokens(slot)
        return only

    def of_tokens(self, slot: int) -> list[Prediction]:
        """One for each token of a batch slot's step."""
        assert 0 <= slot < len(self._rows), f"slot {slot} was not run"
        logits, row = self._graph.arrays[names.LOGITS], int(self._rows[slot])
        tokens = logits.shape[1] if logits.ndim == _OF_SEVERAL else 1
        return [
            Prediction(partial(self._logits, row, token), self._top_tokens(row, token))
            for token in range(tokens)
        ]

    @property
    def logits(self) -> Logits:
        """float32 [slots, V], or [slots, C, V] of a step of several tokens."""
        rows = self._rows
        logits: Logits = self._graph.rows(names.LOGITS, 0, int(rows.max()) + 1)
        is_in_order = np.array_equal(rows, np.arange(len(logits)))
        return logits if is_in_order else logits[rows]

    def _logits(self, row: int, token: int) -> Logits:
        logits: Logits = self._graph.rows(names.LOGITS, row, row + 1)[0]
        return logits[token] if logits.ndim == _OF_SEVERAL - 1 else logits

    def _top_tokens(self, row: int, token: int) -> TopTokens | None:
        arrays = self._graph.arrays
        if (outputs := table.likeliest(arrays)) is None:
            return None
        tokens, logits, normalizer = (arrays[name][row] for name in outputs)
        if tokens.ndim > 1:
            tokens, logits, normalizer = tokens[token], logits[token], normalizer[token]
        return TopTokens(tokens, logits, float(normalizer))
