"""The comparison itself: sequences through all runners, and every pair's distance."""

from collections.abc import Sequence
from dataclasses import dataclass

from polygraphy.comparator import AccuracyResult, Comparator, RunResults, SimpleCompareFunc

from snapexport.contract.build_directory import Build
from snapexport.contract.manifest import Manifest
from snapexport.contract.targets import DType
from snapexport.eval.accuracy.measures import Distance
from snapexport.eval.accuracy.sequence import (
    DECODE_LOGITS,
    INPUT_IDS,
    PROMPT_LENGTH,
    Feed,
    SequenceRunner,
)

TOLERANCE: dict[DType, float] = {"fp32": 1e-3, "fp16": 5e-2, "bf16": 4e-1}
"""Largest absolute error of logits where nothing was dropped.

bf16 has three bits less than fp16: eight times its error. No bf16 build has been compared yet.
"""

INT4_TOLERANCE = 1e-1
"""Between graphs with 4-bit weights, which round activations to 8 bits: sums in another order can
round one the other way."""


def tolerance(manifest: Manifest) -> float:
    """What the build's graphs may differ by where nothing was dropped or quantized."""
    return INT4_TOLERANCE if manifest.quantization else TOLERANCE[manifest.dtype]


@dataclass(frozen=True, slots=True)
class Difference:
    """One output of one sequence, a runner against a reference.

    lossless: nothing was dropped that the output depends on, and the weights are the same, so that
    both have to be equal. rounded: nothing was dropped, but one of them has a cache of fewer bits.
    quantized: the reference's weights are the original ones, the runner's not. passed: Polygraphy's
    verdict at the tolerance.
    """

    prompt_length: int
    output: str
    reference: str
    runner: str
    lossless: bool
    rounded: bool
    quantized: bool
    passed: bool
    distance: Distance

    @property
    def broken(self) -> bool:
        """Whether outputs differ that have to be equal."""
        return self.lossless and not self.passed


def run_all(runners: Sequence[SequenceRunner], feeds: Sequence[Feed]) -> RunResults:
    """Polygraphy's own loop: one runner after the other, each over all sequences."""
    return Comparator.run(list(runners), data_loader=list(feeds), streaming=False)


def differences(
    build: Build, runners: Sequence[SequenceRunner], feeds: Sequence[Feed], results: RunResults
) -> list[Difference]:
    """Every runner against every earlier one, sequence by sequence, output by output."""
    pairs = [(one, other) for other in range(len(runners)) for one in range(other)]
    compare = SimpleCompareFunc(atol=tolerance(build.manifest), rtol=0, check_error_stat="max")
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
            prompt_length=_prompt_length(feed),
            output=output,
            reference=reference.name,
            runner=runner.name,
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
    """What the two may differ by."""
    quantized = manifest.quantization is not None and reference.original
    # Two compressed caches may differ too: nearly equal votes can be ranked either way.
    whole = (reference.lossless and runner.lossless) or _drops_nothing(manifest, feed, output)
    rounds = output == DECODE_LOGITS and reference.rounds_cache != runner.rounds_cache
    return {
        "lossless": whole and not rounds and not quantized,
        "rounded": whole and rounds and not quantized,
        "quantized": quantized,
    }


def _prompt_length(feed: Feed) -> int:
    return int(feed[PROMPT_LENGTH][0])


def _drops_nothing(manifest: Manifest, feed: Feed, output: str) -> bool:
    """Prefill attends to everything; decode does while sinks and ring hold every position.

    The ring of a layer that slides always holds what the layer attends to.
    """
    layers = zip(manifest.geometry.layers, manifest.model.sliding_window, strict=True)
    held = [place.L_sink + place.L_recent for place, window in layers if not window]
    return output != DECODE_LOGITS or all(feed[INPUT_IDS].shape[1] <= slots for slots in held)
