"""The sizes of a layer's recurrent states."""

from pydantic import PositiveInt

from snapexport.contract.engines import Strict


class StateSizes(Strict):
    """What a layer holds of all positions; its size does not grow with them.

    conv: channels, and the positions that a convolution still reads, k - 1; None: no convolution.
    matrix: heads H, dk and dv of [H,dk,dv], float32; None: none.
    """

    conv: tuple[PositiveInt, PositiveInt] | None = None
    matrix: tuple[PositiveInt, PositiveInt, PositiveInt] | None = None
