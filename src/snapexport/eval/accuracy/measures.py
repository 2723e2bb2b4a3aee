"""How far logits are apart, by what matters when a token is chosen from them."""

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Distance:
    """Of logits [N, V] to a reference's. KL(reference || other) in nats, mean over the rows."""

    max_abs_error: float
    mean_abs_error: float
    top1_agreement: float
    kl_divergence: float

    @classmethod
    def between(cls, reference: Rows, other: Rows) -> "Distance":
        """Measure rows of the same tokens."""
        error = np.abs(reference - other)
        p, q = log_softmax(reference), log_softmax(other)
        same = reference.argmax(-1) == other.argmax(-1)
        divergence = (np.exp(p) * (p - q)).sum(-1)
        return cls(*(float(x) for x in (error.max(), error.mean(), same.mean(), divergence.mean())))

    def as_dict(self) -> dict[str, float]:
        """For JSON."""
        return asdict(self)


def log_softmax(logits: Rows) -> NDArray[np.float64]:
    """Log probabilities over the last axis, in double precision."""
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return result
