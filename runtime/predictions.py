"""What a graph says of the next tokens: logits, and the likeliest tokens where the build has them.

Knows no request: how a token is chosen is sampling's.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from snapexport.contract import names
from snapexport.runtime.bound_graph import BoundGraph

Logits = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TopTokens:
    """The N likeliest tokens, by descending logit; ties with the lower token first.

    tokens: int64 [N]. logits: float32 [N]. log_normalizer: logsumexp(logits / temperature) over the
    whole vocabulary; finite exactly if a token can be chosen.
    """

    tokens: NDArray[np.int64]
    logits: Logits
    log_normalizer: float


class Prediction:
    """Of one request's next token. top_tokens: None where the build has none.

    All of it lies in the engine's own buffers.
    """

    def __init__(self, fetch: Callable[[], Logits], top_tokens: TopTokens | None = None) -> None:
        """fetch: gives the logits [V]."""
        self._fetch = fetch
        self.top_tokens = top_tokens

    @cached_property
    def logits(self) -> Logits:
        """[V]. On a GPU with top_tokens they are copied to the host at the first look."""
        return self._fetch()


class Predictions:
    """Of the first `count` rows of a graph's latest run: by slot, or the logits of all."""

    def __init__(self, graph: BoundGraph, count: int) -> None:
        self._graph = graph
        self._count = count

    def __getitem__(self, slot: int) -> Prediction:
        assert 0 <= slot < self._count, f"slot {slot} was not run"
        return Prediction(partial(self._logits, slot), self._top_tokens(slot))

    @property
    def logits(self) -> Logits:
        """[count, V]."""
        logits: Logits = self._graph.rows(names.LOGITS, 0, self._count)
        return logits

    def _logits(self, slot: int) -> Logits:
        logits: Logits = self._graph.rows(names.LOGITS, slot, slot + 1)[0]
        return logits

    def _top_tokens(self, slot: int) -> TopTokens | None:
        arrays = self._graph.arrays
        if names.TOP_TOKENS not in arrays:
            return None
        return TopTokens(
            arrays[names.TOP_TOKENS][slot],
            arrays[names.TOP_LOGITS][slot],
            float(arrays[names.LOG_NORMALIZER][slot]),
        )
