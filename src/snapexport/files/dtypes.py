"""Names of element types."""

from typing import Literal, get_args

DType = Literal["fp32", "fp16", "bf16"]
DTYPES: tuple[DType, ...] = get_args(DType)
