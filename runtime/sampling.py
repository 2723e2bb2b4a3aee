"""From logits to a token: temperature, then top-k, then top-p, in Hugging Face's order.

Pure functions of one request's logits and its own generator, so that neighbours have no say.
"""

import numpy as np
from numpy.typing import NDArray

from snapexport.runtime.requests import SamplingParams, TokenLogprobs, TokenScore

Logits = NDArray[np.float32]
Weights = NDArray[np.float64]
Tokens = NDArray[np.intp]

_BLOCK = 64


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
    return int(tokens[_draw(weights, rng.random())])


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
    """Tokens, ascending, and their probabilities: zero for what top-p leaves out."""
    tokens = _top_k(logits, params.top_k)
    weights = _softmax(logits[tokens], params.temperature)
    if params.top_p < 1:
        weights = _top_p(weights, params.top_p)
    return tokens, weights


def _top_k(logits: Logits, k: int) -> Tokens:
    """The k likeliest tokens; all of them for k = 0.

    Of the blocks' maxima the k-th largest is no larger than the k-th largest logit: what lies below
    it need not be looked at, in a tenth of the time.
    """
    if not 0 < k < len(logits):
        return np.arange(len(logits))
    maxima = np.maximum.reduceat(logits, np.arange(0, len(logits), _BLOCK))
    bound = np.partition(maxima, -k)[-k] if k < len(maxima) else -np.inf
    likely = np.flatnonzero(logits >= bound)
    return np.sort(likely[np.argpartition(logits[likely], -k)[-k:]])


def _softmax(logits: Logits, temperature: float) -> Weights:
    weights = logits.astype(np.float64)
    weights -= weights.max()
    with np.errstate(over="ignore"):  # a tiny temperature: all but the likeliest go to exp(-inf)
        weights /= temperature
    np.exp(weights, out=weights)
    weights /= weights.sum()
    return weights


def _top_p(weights: Weights, p: float) -> Weights:
    """The fewest weights, from the largest down, whose sum reaches p; to 1 again, the others 0."""
    least, missing = _least_of_top_p(weights, p)
    kept = np.where(weights > least, weights, 0)
    ties = np.flatnonzero(weights == least)
    needed = np.searchsorted(np.cumsum(weights[ties]), missing, side="left") + 1
    kept[ties[:needed]] = least
    kept /= kept.sum()
    return kept


def _least_of_top_p(weights: Weights, p: float) -> tuple[float, float]:
    """The smallest weight that is needed to reach p, and what the larger ones leave of p.

    Quickselect, by sums instead of ranks: sorting a whole vocabulary takes ten times as long.
    """
    rest, missing = weights, p
    while True:
        pivot = float(rest[len(rest) // 2])
        larger, smaller = rest[rest > pivot], rest[rest < pivot]
        above = float(larger.sum())
        with_ties = above + pivot * (len(rest) - len(larger) - len(smaller))
        if above >= missing:
            rest = larger
        elif with_ties >= missing or not len(smaller):  # a sum may be short of 1 by its rounding
            return pivot, missing - above
        else:
            rest, missing = smaller, missing - with_ties


def _draw(weights: Weights, share: float) -> int:
    """The index at which the weights, added up, exceed a share, in [0, 1), of their sum.

    Block by block, then within one: adding up a vocabulary one by one takes ten times as long.
    """
    blocks = np.cumsum(np.add.reduceat(weights, np.arange(0, len(weights), _BLOCK)))
    goal = share * blocks[-1]
    block = _first_above(blocks, goal)
    before = blocks[block - 1] if block else 0.0
    start = block * _BLOCK
    return start + _first_above(np.cumsum(weights[start : start + _BLOCK]), goal - before)


def _first_above(bounds: Weights, goal: float) -> int:
    """The last that is larger than the one before it, where rounding puts the goal past the end."""
    above = int(np.searchsorted(bounds, goal, side="right"))
    return min(above, int(np.searchsorted(bounds, bounds[-1])))
