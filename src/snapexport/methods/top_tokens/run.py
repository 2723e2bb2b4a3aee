"""Samples from the likeliest tokens that a graph outputs, where they decide without the logits.

The token is the same either way.
"""

import math

import numpy as np

from snapexport.methods.top_tokens.spec import OUTPUTS
from snapexport.runtime.engine.backend import Integers
from snapexport.runtime.engine.bound_graph import (
    Choices,
    FetchLogits,
    HostArrays,
    Logits,
    Prediction,
    Sampled,
)
from snapexport.runtime.engine.method import MethodRun
from snapexport.runtime.requests.sampling import graph_temperature, shape, weigh

_OFF_BY = 1e-5, 3e-7
"""Largest error of a float32 log_normalizer: absolute, and relative to the largest logit over the
temperature. Both are more than three times what was measured with 128,256 tokens."""


class TopTokens(Prediction):
    """The N likeliest tokens, by descending logit; of equal logits the lower token comes first.

    They are known before the logits of the whole vocabulary, which are fetched when first read.
    """

    def __init__(
        self, fetch: FetchLogits, tokens: Integers, top_logits: Logits, log_normalizer: float
    ) -> None:
        """tokens: int64 [N]. top_logits: float32 [N].

        log_normalizer = logsumexp(logits / temperature) over the whole vocabulary. It is finite
        exactly if a token can be chosen.
        """
        super().__init__(fetch)
        self.tokens, self.top_logits = tokens, top_logits
        self.log_normalizer = log_normalizer

    @property
    def likeliest(self) -> int:
        """The likeliest token; of equal ones the lowest."""
        return int(self.tokens[0])

    @property
    def is_finite(self) -> bool:
        """Whether a token can be chosen."""
        return math.isfinite(self.log_normalizer)

    def copy(self) -> Prediction:
        """The same in memory of its own, which later runs do not change."""
        logits = self.logits.copy()
        own = self.tokens.copy(), self.top_logits.copy(), self.log_normalizer
        return TopTokens(lambda: logits, *own)

    def choices(self, params: Sampled) -> Choices | None:
        """The same choices as of the logits; None if another token may come next."""
        given = len(self.tokens)
        if 0 < params.top_k <= given or self._is_below_min_p(self.top_logits[-1], params):
            tokens, logits = self._ascending(min(params.top_k or given, given))
            return tokens, shape(logits, params)
        if params.top_k or params.min_p or params.top_p == 1:
            return None
        count = self._nucleus(params)
        if count is None:
            return None
        tokens, logits = self._ascending(count)
        return tokens, weigh(logits, params.temperature)

    def _is_below_min_p(self, logit: np.float32, params: Sampled) -> bool:
        """Whether a token of this logit is left out, and so are all less likely ones."""
        if not params.min_p:
            return False
        both = np.array([self.top_logits[0], logit])
        return bool(weigh(both, params.temperature)[1] < params.min_p)

    def _ascending(self, count: int) -> tuple[list[int], Logits]:
        """The `count` likeliest tokens, and their logits."""
        order = np.argsort(self.tokens[:count])
        return self.tokens[order].tolist(), self.top_logits[order]

    def _nucleus(self, params: Sampled) -> int | None:
        """How many of the tokens reach top-p; None if that is not certain, or too few do.

        log_normalizer is float32, weights are float64. If its error might let another token in, the
        whole logits have to be added up.
        """
        sums = np.cumsum(weigh(self.top_logits, params.temperature))
        largest = float(self.top_logits[0]) / graph_temperature(params)
        log_sum, off_by = self.log_normalizer - largest, _OFF_BY[0] + _OFF_BY[1] * abs(largest)
        with np.errstate(over="ignore"):  # a tiny temperature: the sum may be infinite
            goals = params.top_p * np.exp([log_sum - off_by, log_sum + off_by])
        fewest, most = np.searchsorted(sums, goals)
        return int(most) + 1 if fewest == most < len(sums) else None


def predict(fetch: FetchLogits, arrays: HostArrays, place: tuple[int, ...]) -> Prediction:
    """The prediction of a place in a graph's outputs."""
    tokens, logits, normalizer = (arrays[name][place] for name in OUTPUTS)
    return TopTokens(fetch, tokens, logits, float(normalizer))


class TopTokensRun(MethodRun):
    """Tokens are sampled from the top tokens."""

    predict = staticmethod(predict)


RUN = TopTokensRun()
