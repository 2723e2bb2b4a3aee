"""Names the types of arrays that several modules pass on."""

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
"""Token ids, positions, lengths."""

Floats = NDArray[np.float32]
"""Logits, temperatures."""
