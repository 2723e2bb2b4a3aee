"""From a prediction to a token: temperature, then top-k, then top-p, in Hugging Face's order.

Pure functions of one request's prediction and its own generator, so that neighbours have no say.
Where the prediction has top_tokens and they are enough, nobody looks at the logits, and the token
is the same.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from snapexport.runtime.predictions import Logits, Prediction, TopTokens
from snapexport.runtime.requests import SamplingParams, TokenLogprobs, TokenScore

Weights = NDArray[np.float64]
Choices = tuple[Sequence[int], Weights]
"""Tokens, ascending, and what their probabilities are to each other: 0 if top-p leaves it out.

They do not add up to 1: a draw has no need of it, and each pass over a vocabulary counts."""

_BLOCK = 64

_SAFE = 1e-20, 1e20
"""Temperatures that a graph divides float32 logits by. Beyond them a token is likeliest alone, or
all are alike; 0 or infinity would make NaN of a masked or of the largest logit."""

_OFF_BY = 1e-5, 3e-7
"""How far a log_normalizer of float32 may be off: for its sum, and as a part of the largest logit
over the temperature. More than three times what was seen with 128,256 tokens."""


def generator(params: SamplingParams) -> np.random.Generator:
    """The random numbers of one request: its seed's, or the system's where it has none."""
    return np.random.default_rng(params.seed)


def engine_temperature(params: SamplingParams) -> float:
    """What an engine's graphs divide by. A greedy request has no use for it."""
    least, most = _SAFE
    return min(max(params.temperature, least), most) if params.temperature else 1.0


def can_sample(prediction: Prediction) -> bool:
    """Whether a token can be chosen: some logit is finite, and none is NaN or +inf."""
    if prediction.top_tokens:
        return math.isfinite(prediction.top_tokens.log_normalizer)
    logits = prediction.logits
    return bool(np.isfinite(logits[np.argmax(logits)]))  # argmax finds a NaN before any number


def sample(prediction: Prediction, params: SamplingParams, rng: np.random.Generator) -> int:
    """Choose the next token. Draws once from `rng`, or never if greedy."""
    if params.temperature == 0:
        return _likeliest(prediction)
    tokens, weights = choices(prediction, params)
    return tokens[_draw(weights, rng.random())]


def choices(prediction: Prediction, params: SamplingParams) -> Choices:
    """The tokens that may come next."""
    given = prediction.top_tokens
    found = choices_of_top_tokens(given, params) if given else None
    return found or choices_of_logits(prediction.logits, params)


def _likeliest(prediction: Prediction) -> int:
    if prediction.top_tokens:
        return int(prediction.top_tokens.tokens[0])
    return int(np.argmax(prediction.logits))


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


def choices_of_logits(logits: Logits, params: SamplingParams) -> Choices:
    """Out of the whole vocabulary: logits [V]."""
    tokens: Sequence[int] = range(len(logits))
    if 0 < params.top_k < len(logits):
        tokens, logits = _top_k(logits, params.top_k)
    return tokens, _shaped(logits, params)


def choices_of_top_tokens(top_tokens: TopTokens, params: SamplingParams) -> Choices | None:
    """The same out of the top_tokens; None where some token beyond them may come next."""
    if 0 < params.top_k <= len(top_tokens.tokens):
        tokens, logits = _ascending(top_tokens, params.top_k)
        return tokens, _shaped(logits, params)
    if params.top_k or params.top_p == 1:
        return None
    count = _nucleus(top_tokens, params)
    if count is None:
        return None
    tokens, logits = _ascending(top_tokens, count)
    return tokens, _weights(logits, params.temperature)


def _ascending(top_tokens: TopTokens, count: int) -> tuple[list[int], Logits]:
    """The `count` likeliest tokens, and their logits."""
    order = np.argsort(top_tokens.tokens[:count])
    return top_tokens.tokens[order].tolist(), top_tokens.logits[order]


def _nucleus(top_tokens: TopTokens, params: SamplingParams) -> int | None:
    """How many of the likeliest tokens reach top-p; None where rounding may decide, or not these.

    log_normalizer is of float32, weights are not: where it might be off by enough to let another
    token in, the logits have to be added up.
    """
    sums = np.cumsum(_weights(top_tokens.logits, params.temperature))
    largest = float(top_tokens.logits[0]) / engine_temperature(params)
    log_sum, off_by = top_tokens.log_normalizer - largest, _OFF_BY[0] + _OFF_BY[1] * abs(largest)
    with np.errstate(over="ignore"):  # a tiny temperature: nothing is known of the sum
        goals = params.top_p * np.exp([log_sum - off_by, log_sum + off_by])
    fewest, most = np.searchsorted(sums, goals)
    return int(most) + 1 if fewest == most < len(sums) else None


def _top_k(logits: Logits, k: int) -> tuple[list[int], Logits]:
    """The k likeliest tokens, ascending, and their logits; of ties for the last place the first.

    Of the blocks' maxima the k-th largest is no larger than the k-th largest logit: what lies below
    it need not be looked at, in a tenth of the time.
    """
    maxima = np.maximum.reduceat(logits, np.arange(0, len(logits), _BLOCK))
    bound = np.partition(maxima, -k)[-k] if k < len(maxima) else -np.inf
    likely = np.flatnonzero(logits >= bound)
    found = logits[likely]
    last = np.partition(found, -k)[-k]
    kept = found > last
    kept[np.flatnonzero(found == last)[: k - np.count_nonzero(kept)]] = True
    tokens = likely[kept]
    return tokens.tolist(), logits[tokens]


def _shaped(logits: Logits, params: SamplingParams) -> Weights:
    """Weights under temperature and top-p."""
    weights = _weights(logits, params.temperature)
    return _top_p(weights, params.top_p) if params.top_p < 1 else weights


def _weights(logits: Logits, temperature: float) -> Weights:
    """Their softmax, by the largest."""
    weights = logits.astype(np.float64)
    weights -= weights.max()
    with np.errstate(over="ignore"):  # a tiny temperature: all but the likeliest go to exp(-inf)
        weights /= temperature
    return np.exp(weights, out=weights)


def _top_p(weights: Weights, p: float) -> Weights:
    """Keep the fewest weights, from the largest down, whose sum reaches p of all; the others are 0.

    Of those that tie for the last place the first are kept. It is done in place.
    """
    steps = _steps_below_largest(weights)
    # Added up by steps, and sorted within one: all of a vocabulary takes five times as long.
    sums = np.bincount(steps, weights).cumsum()
    goal = p * sums[-1]
    step = int(np.searchsorted(sums, goal))
    missing = goal - (sums[step - 1] if step else 0.0)
    last = np.flatnonzero(steps == step)
    last = last[np.argsort(-weights[last], kind="stable")]
    descending = weights[last]
    needed = np.searchsorted(np.cumsum(descending), missing) + 1
    weights *= steps < step
    weights[last[:needed]] = descending[:needed]
    return weights


def _steps_below_largest(weights: Weights) -> NDArray[np.int64]:
    """How far below the largest each weight is, in steps of less than a hundredth of it.

    A number's bits, read as an integer, ascend with it. All below 2^-32 of the largest are alike.
    """
    bits = weights.view(np.int64)
    steps: NDArray[np.int64] = bits.max() - bits
    steps >>= 44
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
