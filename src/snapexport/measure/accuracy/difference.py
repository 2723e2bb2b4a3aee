"""Measures how far the logits of each system are from those of each other one."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from polygraphy.comparator import AccuracyResult, Comparator, RunResults, SimpleCompareFunc

from snapexport.contract.build_directory import Build
from snapexport.contract.manifest import Manifest
from snapexport.files.dtypes import DType
from snapexport.measure.accuracy.sequence import (
    DECODE_LOGITS,
    INPUT_IDS,
    PROMPT_LENGTH,
    Feed,
    SequenceRunner,
)
from snapexport.runtime.requests.sampling import log_softmax

Rows = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Distance:
    """Errors of logits [N, V] against a reference. KL(reference || other) in nats, mean of rows."""

    max_abs_error: float
    mean_abs_error: float
    top1_agreement: float
    kl_divergence: float

    @classmethod
    def between(cls, reference: Rows, other: Rows) -> "Distance":
        """The distance of two sets of rows for the same tokens."""
        error = np.abs(reference - other)
        p, q = log_softmax(reference), log_softmax(other)
        same = reference.argmax(-1) == other.argmax(-1)
        divergence = (np.exp(p) * (p - q)).sum(-1)
        return cls(*(float(x) for x in (error.max(), error.mean(), same.mean(), divergence.mean())))


TOLERANCE: dict[DType, float] = {"fp32": 1e-3, "fp16": 5e-2, "bf16": 4e-1}
"""Largest absolute error of logits where nothing was dropped.

bf16 has three bits fewer than fp16, so eight times its error; no bf16 build was compared yet.
"""

INTEGERS_SHARE = 0.5
"""Of the logits' standard deviation, between graphs whose weights are integers: they round
activations to 8 bits, and sums in another order round some the other way, in every layer anew.
SmolLM2-135M's 30 layers differ by .2 of it; a wrong graph differs by more than all of it."""


def tolerance(manifest: Manifest, deviation: float) -> float:
    """The largest error that the build's graphs may have where nothing was dropped or quantized.

    deviation: the standard deviation of the logits.
    """
    if manifest.rounds_activations:
        return INTEGERS_SHARE * deviation
    return TOLERANCE[manifest.dtype]


def spelled_tolerance(manifest: Manifest) -> str:
    """The same in words."""
    if manifest.rounds_activations:
        return f"{INTEGERS_SHARE:g} of the logits' standard deviation"
    return f"{TOLERANCE[manifest.dtype]:g}"


@dataclass(frozen=True, slots=True)
class Difference:
    """One output of one sequence: a system against a reference.

    lossless: both must be equal, as nothing was dropped that the output depends on, and the weights
    are the same. rounded: nothing was dropped, but one of the two has a cache of fewer bits.
    quantized: nothing was dropped, but the system has rounded weights, or rounds activations to 8
    bits.
    passed: Polygraphy's verdict at the tolerance.
    """

    prompt_length: int
    output: str
    reference: str
    system: str
    lossless: bool
    rounded: bool
    quantized: bool
    passed: bool
    distance: Distance

    @property
    def broken(self) -> bool:
        """Whether outputs differ that must be equal."""
        return self.lossless and not self.passed

    @property
    def verdict(self) -> str:
        """In a word, as users read it."""
        if self.lossless:
            return "DIFFERS" if self.broken else "equal"
        return "quantized" if self.quantized else "rounded" if self.rounded else "compressed"


def differences(
    build: Build, runners: Sequence[SequenceRunner], feeds: Sequence[Feed], results: RunResults
) -> list[Difference]:
    """Compare every runner with every earlier one, sequence by sequence, output by output."""
    pairs = [(one, other) for other in range(len(runners)) for one in range(other)]
    logits = [row.std() for run in results[runners[0].name] for row in run.values()]
    bound = tolerance(build.manifest, float(np.mean(logits)))
    compare = SimpleCompareFunc(atol=bound, rtol=0, check_error_stat="max")
    (accuracy,) = Comparator.compare_accuracy(results, comparisons=pairs, compare_func=compare)
    return [
        difference
        for one, other in pairs
        for difference in _pair(build, runners[one], runners[other], feeds, results, accuracy)
    ]


def _pair(
    build: Build,
    reference: SequenceRunner,
    runner: SequenceRunner,
    feeds: Sequence[Feed],
    results: RunResults,
    accuracy: AccuracyResult,
) -> list[Difference]:
    rows = zip(feeds, results[reference.name], results[runner.name], strict=True)
    return [
        Difference(
            prompt_length=int(feed[PROMPT_LENGTH][0]),
            output=output,
            reference=reference.name,
            system=runner.name,
            **_why(build.manifest, reference, runner, feed, output),
            passed=bool(verdict),
            distance=Distance.between(expected[output], actual[output]),
        )
        for (feed, expected, actual), verdicts in zip(
            rows, accuracy[reference.name, runner.name], strict=True
        )
        for output, verdict in verdicts.items()
    ]


def _why(
    manifest: Manifest, reference: SequenceRunner, runner: SequenceRunner, feed: Feed, output: str
) -> dict[str, bool]:
    """The reasons for which the two may differ."""
    other_weights = manifest.quantization in ("int8", "int4") or manifest.rounds_activations
    quantized = other_weights and reference.original
    # Two compressed caches may differ too: nearly equal votes can be ranked either way.
    whole = (reference.lossless and runner.lossless) or _drops_nothing(manifest, feed, output)
    prompt_length = int(feed[PROMPT_LENGTH][0])
    whole &= not (reference.is_sparse(prompt_length) or runner.is_sparse(prompt_length))
    rounds = output == DECODE_LOGITS and reference.rounds_cache != runner.rounds_cache
    rounds |= reference.rounds_prompt != runner.rounds_prompt
    return {
        "lossless": whole and not rounds and not quantized,
        "rounded": whole and rounds and not quantized,
        "quantized": whole and quantized,
    }


def _drops_nothing(manifest: Manifest, feed: Feed, output: str) -> bool:
    """Prefill attends to everything; decode does while the cache holds every position.

    The ring of a layer that slides always holds what the layer attends to.
    """
    places, layers = manifest.geometry.widest.items(), manifest.model.layers
    held = [place.size for index, place in places if not layers[index].reach]
    return output != DECODE_LOGITS or all(feed[INPUT_IDS].shape[1] <= slots for slots in held)
