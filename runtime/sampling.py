"""From logits to a token: temperature, then top-k, then top-p, in Hugging Face's order.

Pure functions of one request's logits and its own generator, so that neighbours have no say.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from snapexport.runtime.requests import SamplingParams, TokenLogprobs, TokenScore

Logits = NDArray[np.float32]
Weights = NDArray[np.float64]

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
    return tokens[_draw(weights, rng.random())]


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


def candidates(logits: Logits, params: SamplingParams) -> tuple[Sequence[int], Weights]:
    """Tokens, ascending, and what their probabilities are to each other: 0 if top-p leaves it out.

    They do not add up to 1: a draw has no need of it, and each pass over a vocabulary counts.
    """
    tokens: Sequence[int] = range(len(logits))
    if 0 < params.top_k < len(logits):
        tokens, logits = _top_k(logits, params.top_k)
    weights = _weights(logits, params.temperature)
    if params.top_p < 1:
        weights = _top_p(weights, params.top_p)
    return tokens, weights


def _top_k(logits: Logits, k: int) -> tuple[list[int], Logits]:
    """The k likeliest tokens, ascending, and their logits.

    Of the blocks' maxima the k-th largest is no larger than the k-th largest logit: what lies below
    it need not be looked at, in a tenth of the time.
    """
    maxima = np.maximum.reduceat(logits, np.arange(0, len(logits), _BLOCK))
    bound = np.partition(maxima, -k)[-k] if k < len(maxima) else -np.inf
    likely = np.flatnonzero(logits >= bound)
    tokens = np.sort(likely[np.argpartition(logits[likely], -k)[-k:]])
    return tokens.tolist(), logits[tokens]


def _weights(logits: Logits, temperature: float) -> Weights:
    """Their softmax, by the largest."""
    weights = logits.astype(np.float64)
    weights -= weights.max()
    with np.errstate(over="ignore"):  # a tiny temperature: all but the likeliest go to exp(-inf)
        weights /= temperature
    return np.exp(weights, out=weights)


def _top_p(weights: Weights, p: float) -> Weights:
    """The fewest weights, from the largest down, whose sum reaches p of all; the others 0.

    Of those that tie for the last place the first are kept.
    """
    steps = _steps_below_largest(weights)
    # Added up by steps, and sorted within one: all of a vocabulary takes five times as long.
    sums = np.bincount(steps, weights).cumsum()
    goal = p * sums[-1]
    step = int(np.searchsorted(sums, goal))
    missing = goal - (sums[step - 1] if step else 0.0)
    last = np.flatnonzero(steps == step)
    last = last[np.argsort(-weights[last], kind="stable")]
    needed = np.searchsorted(np.cumsum(weights[last]), missing) + 1
    kept = weights * (steps < step)
    kept[last[:needed]] = weights[last[:needed]]
    return kept


def _steps_below_largest(weights: Weights) -> NDArray[np.int32]:
    """How far below the largest each weight is, in steps of less than a hundredth of it.

    A number's bits, read as an integer, ascend with it. All below 2^-32 of the largest are alike.
    """
    steps = weights.astype(np.float32).view(np.int32)
    np.subtract(steps.max(), steps, out=steps)
    steps >>= 15
    return np.minimum(steps, 1 << 13, out=steps)


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
