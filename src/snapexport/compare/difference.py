"""Says how far logits are from the reference's, and refuses what is too far.

A small decoder in fp32 is held to a share of the reference's standard deviation. A build is held to
an absolute error by its dtype, and to such a share only if its graphs round activations.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from snapexport.contract.manifest import Manifest
from snapexport.errors import UserError
from snapexport.files.dtypes import DType
from snapexport.runtime.requests.sampling import log_softmax

MOST = 1e-3
"""Largest share that is still the same answer: rounding in fp32 makes 1e-6 to 1e-4."""

TOLERANCE: dict[DType, float] = {"fp32": 1e-3, "fp16": 5e-2, "bf16": 4e-1}
"""Largest absolute error of a build's logits where nothing was dropped.

bf16 has three bits fewer than fp16, so eight times its error; no bf16 build was compared yet.
"""

INTEGERS_SHARE = 0.5
"""Share of the logits' standard deviation, between graphs whose weights are integers: they round
activations to 8 bits, and sums in another order round some the other way, in every layer anew.
SmolLM2-135M's 30 layers differ by .2 of it; a wrong graph differs by more than all of it."""

HINT = "nothing was written, since its graphs would be wrong: this model can't be built"

Logits = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Distance:
    """Errors of logits [N, V] against a reference. KL(reference || other) in nats, mean of rows."""

    max_abs_error: float
    mean_abs_error: float
    top1_agreement: float
    kl_divergence: float

    @classmethod
    def between(cls, reference: Logits, other: Logits) -> "Distance":
        """The distance of two sets of rows for the same tokens."""
        error = np.abs(reference - other)
        p, q = log_softmax(reference), log_softmax(other)
        same = reference.argmax(-1) == other.argmax(-1)
        divergence = (np.exp(p) * (p - q)).sum(-1)
        return cls(*(float(x) for x in (error.max(), error.mean(), same.mean(), divergence.mean())))


def share(found: Mapping[int, Logits], expected: Logits) -> float:
    """The largest |difference|, as a share of the expected logits' standard deviation.

    found: [V] by row. expected: [T,V].
    """
    wanted = expected[list(found)]
    largest = np.abs(np.stack(list(found.values())) - wanted).max()
    return float(largest / wanted.std())


def is_same(share: float) -> bool:
    """Whether it is small enough; never if it is NaN."""
    return share <= MOST


def require_same(share: float, where: Callable[[], str]) -> None:
    """Raise UserError for a share that is too large. where: finds out what differs first."""
    if not is_same(share):
        raise UserError(
            f"the graphs' logits differ from transformers' by {share:.2g} of their standard "
            f"deviation, beginning with {where()}",
            HINT,
        )


def require_finite(expected: Logits) -> None:
    """Raise UserError for logits that nothing can be compared with."""
    if not np.isfinite(expected).all() or not expected.std() > 0:
        raise UserError(
            "transformers' own logits of the checkpoint are not finite, or all the same",
            "download the checkpoint again: its weights are damaged",
        )


def tolerance(manifest: Manifest, deviation: float) -> float:
    """The largest error that the build's graphs may have where nothing was dropped or quantized.

    deviation: the standard deviation of the logits.
    """
    if manifest.rounds_activations:
        return INTEGERS_SHARE * deviation
    return TOLERANCE[manifest.dtype]


def spelled_tolerance(manifest: Manifest) -> str:
    """`tolerance` in words."""
    if manifest.rounds_activations:
        return f"{INTEGERS_SHARE:g} of the logits' standard deviation"
    return f"{TOLERANCE[manifest.dtype]:g}"
