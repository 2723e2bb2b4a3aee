"""Chooses a token from a prediction: temperature, then min-p, top-k and top-p.

Pure functions of one request's prediction and its own generator: neighbours change nothing. If the
prediction knows its choices without the logits, these are not read, and the token is the same.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from snapexport.runtime.engine.bound_graph import Choices, Logits, Prediction, Sampled, Weights
from snapexport.runtime.requests.request import SamplingParams, TokenLogprobs, TokenScore

_BLOCK = 64

_SAFE = 1e-20, 1e20
"""Least and largest temperature that a graph divides float32 logits by. Beyond them one token has
all the probability, or all tokens have the same; 0 or infinity would turn some logits into NaN."""


def generator(params: SamplingParams) -> np.random.Generator:
    """Return the random numbers of one request: its seed's, or the system's if it has none."""
    return np.random.default_rng(params.seed)


def graph_temperature(params: Sampled) -> float:
    """Return the temperature for a graph's input. A greedy request does not use it."""
    least, most = _SAFE
    return min(max(params.temperature, least), most) if params.temperature else 1.0


def sample(prediction: Prediction, params: SamplingParams, rng: np.random.Generator) -> int:
    """Choose the next token. Draws once from `rng`, or never if greedy."""
    if params.temperature == 0:
        return prediction.likeliest
    tokens, weights = choices(prediction, params)
    return tokens[_draw(weights, rng.random())]


def choices(prediction: Prediction, params: Sampled) -> Choices:
    """Return the tokens that may come next, with their weights."""
    return prediction.choices(params) or choices_of_logits(prediction.logits, params)


def score(logits: Logits, token: int) -> TokenScore:
    """Return the natural log probability of one token under logits [V]."""
    logprob = float(log_softmax(logits)[token])
    return TokenScore(logprob, is_greedy=int(np.argmax(logits)) == token)


def logprobs(logits: Logits, token: int, count: int) -> TokenLogprobs:
    """Return a token's log probability and those of the `count` likeliest tokens."""
    each, count = log_softmax(logits), min(count, len(logits))
    # Sorting a whole vocabulary takes 15 ms. All that tie for the last place are kept for now.
    likely = np.flatnonzero(each >= np.partition(each, -count)[-count]) if count else _NONE
    likely = likely[np.argsort(-each[likely], kind="stable")][:count]
    top = tuple((int(token), float(each[token])) for token in likely)
    return TokenLogprobs(token, float(each[token]), top)


_NONE = np.empty(0, np.intp)


def log_softmax(logits: Logits) -> Weights:
    """Log probabilities over the last axis, in double precision."""
    shifted: Weights = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(-1, keepdims=True))
    return shifted


def choices_of_logits(logits: Logits, params: Sampled) -> Choices:
    """Return the choices of the whole vocabulary: logits [V]."""
    tokens: Sequence[int] = range(len(logits))
    if 0 < params.top_k < len(logits):
        tokens, logits = _top_k(logits, params.top_k)
    return tokens, shape(logits, params)


def _top_k(logits: Logits, k: int) -> tuple[list[int], Logits]:
    """The k likeliest tokens, ascending, and their logits; of ties for the last place the first.

    The k-th largest of the blocks' maxima is a lower bound of the k-th largest logit. Dropping
    everything below it takes a tenth of the time.
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


def shape(logits: Logits, params: Sampled) -> Weights:
    """Weights under temperature, min-p and top-p. The largest one is 1."""
    weights = weigh(logits, params.temperature)
    if params.min_p:
        weights[weights < params.min_p] = 0.0
    return _top_p(weights, params.top_p) if params.top_p < 1 else weights


def weigh(logits: Logits, temperature: float) -> Weights:
    """exp((logits - max) / temperature), float64."""
    weights = logits.astype(np.float64)
    weights -= weights.max()
    with np.errstate(over="ignore"):  # a tiny temperature: all but the likeliest go to exp(-inf)
        weights /= temperature
    return np.exp(weights, out=weights)


def _top_p(weights: Weights, p: float) -> Weights:
    """Keep the fewest weights, from the largest down, whose sum reaches p of all; zero the others.

    Of those that tie for the last place the first are kept. Works in place.
    """
    steps = _steps_below_largest(weights)
    # Add up by steps, and sort within one: sorting a whole vocabulary takes five times as long.
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

    The bits of a positive float, as an integer, ascend with it. Everything below 2^-32 of the
    largest is in the last step.
    """
    bits = weights.view(np.int64)
    steps: NDArray[np.int64] = bits.max() - bits
    steps >>= 44
    return np.minimum(steps, 1 << 13, out=steps)


def _draw(weights: Weights, share: float) -> int:
    """The index at which the cumulative weights exceed `share`, in [0, 1), of their sum.

    Adds up blocks, then within one: a whole vocabulary takes ten times as long.
    """
    blocks = np.cumsum(np.add.reduceat(weights, np.arange(0, len(weights), _BLOCK)))
    goal = share * blocks[-1]
    block = _first_above(blocks, goal)
    before = blocks[block - 1] if block else 0.0
    start = block * _BLOCK
    return start + _first_above(np.cumsum(weights[start : start + _BLOCK]), goal - before)


def _first_above(bounds: Weights, goal: float) -> int:
    """The first bound above the goal; the last one if rounding puts the goal past the end."""
    above = int(np.searchsorted(bounds, goal, side="right"))
    return min(above, int(np.searchsorted(bounds, bounds[-1])))
