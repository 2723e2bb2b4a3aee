"""AWQ's weights as AutoAWQ stores them (version `gemm`): 4 bits, packed along the rows of [K,N].

x.qweight int32 [K,N/8], x.qzeros int32 [groups,N/8], x.scales [groups,N]. Of 8 columns the word has
0, 2, 4, 6, 1, 3, 5 and 7, from the lowest bits on.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapexport.exporter.weights.readers.grouped import (
    GroupedWeight,
    Groups,
    require_groups,
    unpack,
)
from snapexport.exporter.weights.readers.quantization import (
    FLOATS,
    OfParts,
    array,
    group_size,
    require,
    require_matrix,
    require_names,
    require_value,
    require_values,
)
from snapexport.exporter.weights.tensor_file import Tensor
from snapexport.files.safetensors import TensorSpan

_IN_A_WORD = 8
_PLACES = np.array([0, 4, 1, 5, 2, 6, 3, 7])
"""Where a word has each of its 8 columns."""
_VALUES: dict[str, tuple[object, ...]] = {
    "zero_point": (True, False),
    "desc_act": (False,),
    "sym": (False, True),
    "lm_head": (False, True, None),
    "dynamic": (None,),
    "pack_dtype": ("int32",),
    "method": ("awq",),
}
_NEUTRAL = ("do_fuse", "fuse_max_seq_len", "modules_to_fuse")


@dataclass(frozen=True)
class Awq(OfParts):
    """group: columns that share a scale; None: all of a row. symmetric: whether zeros are 8.

    says_both: whether symmetry is said, and zero points too.
    """

    group: int | None
    symmetric: bool = False
    says_both: bool = False
    kind = "awq"
    needed = ("qweight", "qzeros", "scales")
    packed = "qweight"

    @classmethod
    def of(cls, given: dict[str, Any]) -> "Awq":
        """Read quantization_config without its method. Raises UserError."""
        require_names("modules_to_not_convert", given.pop("modules_to_not_convert", None))
        for name in ("version", "format", "checkpoint_format"):
            value = given.pop(name, "gemm")
            require_value(name, value.lower() if isinstance(value, str) else value, ("gemm",))
        for name in ("bits", "w_bit"):
            require_value(name, given.pop(name, 4), (4,))
        group = group_size(given.pop("group_size", given.pop("q_group_size", 128)))
        require_values(cls.kind, given, _VALUES, _NEUTRAL)
        return cls(group, given.get("zero_point") is False, given.get("sym") is True)

    def weight(self, stem: str, parts: dict[str, TensorSpan]) -> Tensor:
        """The integers of a matrix."""
        columns, words = require_matrix(f"{stem}.qweight", parts["qweight"])
        rows = words * _IN_A_WORD
        groups = Groups(columns, self.group or columns)
        require_groups(f"{stem}.scales", parts["scales"], groups)
        require(f"{stem}.qweight", parts["qweight"], ("I32",), (columns, words))
        require(f"{stem}.qzeros", parts["qzeros"], ("I32",), (groups.count, words))
        require(f"{stem}.scales", parts["scales"], FLOATS, (groups.count, rows))
        weight = AwqWeight(
            name=f"{stem}.weight",
            count=rows,
            groups=groups,
            bits=4,
            weights=parts["qweight"],
            zeros=parts["qzeros"],
            scales=parts["scales"],
            symmetric=self.symmetric,
        )
        return (weight.without_slip if self.says_both else weight).readable


@dataclass(frozen=True, eq=False, kw_only=True)
class AwqWeight(GroupedWeight):
    """A matrix whose integers are packed along [K,N]'s rows."""

    weights: TensorSpan
    zeros: TensorSpan
    scales: TensorSpan

    def _integers(self, start: int, end: int) -> NDArray[np.uint8]:
        return self._columns(self.weights, start, end)

    def _zeros(self, start: int, end: int) -> NDArray[np.uint8]:
        return self._columns(self.zeros, start, end)

    def _columns(self, span: TensorSpan, start: int, end: int) -> NDArray[np.uint8]:
        words = array(span)[:, start // _IN_A_WORD : end // _IN_A_WORD]
        stored = unpack(words, 4, end - start).reshape(len(words), -1, _IN_A_WORD)
        return np.ascontiguousarray(stored[..., _PLACES].reshape(len(words), -1).T)

    def _scales(self, start: int, end: int) -> NDArray[np.generic]:
        return array(self.scales)[:, start:end].T
