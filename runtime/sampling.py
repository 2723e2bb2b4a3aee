"""From logits to a token: temperature, then top-k, then top-p, in Hugging Face's order.

Pure functions of one request's logits and its own generator, so that neighbours have no say.
"""

import numpy as np
from numpy.typing import NDArray

from snapexport.runtime.requests import SamplingParams, TokenLogprobs, TokenScore

Logits = NDArray[np.float32]
Weights = NDArray[np.float64]
Tokens = NDArray[np.intp]


def generator(params: SamplingParams) -> np.random.Generator:
    """The random numbers of one request: its seed's, or the system's where it has none."""
    return np.random.default_rng(params.seed)


def can_sample(logits: Logits) -> bool:
    """Whether a token can be chosen: some logit is finite, and none is NaN or +inf."""
    return bool(np.isfinite(logits[np.argmax(logits)]))  # argmax finds a NaN before any number


def sample(logits: Logits, params: SamplingParams, rng: np.random.Generator) -> int:
    """Choose the next token from logits [V]. Draws once from `rng`, or never if greedy."""
    if params.temperature == 0:
        return int(np.argmax(logits))
    tokens, weights = candidates(logits, params)
    bounds = np.cumsum(weights)
    drawn = np.searchsorted(bounds, rng.random() * bounds[-1], side="right")
    return int(tokens[min(int(drawn), len(tokens) - 1)])


def score(logits: Logits, token: int) -> TokenScore:
    """The natural log probability of one token under logits [V]."""
    logprob = float(_log_softmax(logits)[token])
    return TokenScore(logprob, is_greedy=int(np.argmax(logits)) == token)


def logprobs(logits: Logits, token: int, count: int) -> TokenLogprobs:
    """The same, and that of the `count` likeliest tokens."""
    each, count = _log_softmax(logits), min(count, len(logits))
    # Sorting a whole vocabulary takes 15 ms; of those that tie for the last place none is left out.
    likely = np.flatnonzero(each >= np.partition(each, -count)[-count]) if count else _NOBODY
    likely = likely[np.argsort(-each[likely], kind="stable")][:count]
    top = tuple((int(one), float(each[one])) for one in likely)
    return TokenLogprobs(token, float(each[token]), top)


_NOBODY = np.empty(0, np.intp)


def _log_softmax(logits: Logits) -> Weights:
    shifted: Weights = logits.astype(np.float64) - float(logits.max())
    shifted -= np.log(np.exp(shifted).sum())
    return shifted


def candidates(logits: Logits, params: SamplingParams) -> tuple[Tokens, Weights]:
    """The tokens that may be drawn, and their probabilities."""
    tokens = _top_k(logits, params.top_k)
    weights = _softmax(logits[tokens].astype(np.float64), params.temperature)
    kept = _top_p(weights, params.top_p)
    return tokens[kept], weights[kept] / weights[kept].sum()


def _top_k(logits: Logits, k: int) -> Tokens:
    """The k likeliest tokens; all of them for k = 0."""
    if not 0 < k < len(logits):
        return np.arange(len(logits))
    return np.argpartition(logits, -k)[-k:]


def _softmax(logits: Weights, temperature: float) -> Weights:
    with np.errstate(over="ignore"):  # a tiny temperature: all but the likeliest go to exp(-inf)
        weights: Weights = np.exp((logits - logits.max()) / temperature)
    weights /= weights.sum()
    return weights


def _top_p(weights: Weights, p: float) -> Tokens:
    """Indices of the fewest weights, from the largest down, whose sum reaches p."""
    if p == 1:
        return np.arange(len(weights))
    # Those below this bound sum to less than 1 - p. To sort a whole vocabulary takes 15 ms.
    likely = np.flatnonzero(weights >= (1 - p) / len(weights))
    likely = likely[np.argsort(-weights[likely], kind="stable")]
    length = int(np.searchsorted(np.cumsum(weights[likely]), p, side="left")) + 1
    return likely[:length]
