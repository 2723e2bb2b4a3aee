"""Measures how far logits are from the reference's, and refuses what is too far."""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from snapexport.errors import UserError

MOST = 1e-3
"""Largest difference that is still the same answer: rounding in fp32 makes 1e-6 to 1e-4."""

HINT = "nothing was written, since its graphs would be wrong: this model can't be built"

Logits = NDArray[np.float32]


def difference(found: Mapping[int, Logits], expected: Logits) -> float:
    """The largest |difference|, as a share of the expected logits' standard deviation.

    found: [V] by position. expected: [T,V].
    """
    wanted = expected[list(found)]
    largest = np.abs(np.stack(list(found.values())) - wanted).max()
    return float(largest / wanted.std())


def is_same(share: float) -> bool:
    """Whether it is small enough; never if it is NaN."""
    return share <= MOST


def require_same(share: float, where: Callable[[], str]) -> None:
    """Raise UserError for a difference that is too large. where: finds out what differs first."""
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
