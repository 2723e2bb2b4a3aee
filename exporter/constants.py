"""Lets a model compute numbers of its config while it runs without data: quantiles of a normal."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import NormalDist

import torch
from torch import Tensor
from torch.distributions import Distribution


@contextmanager
def constants_computed() -> Iterator[None]:
    """In this block erfinv of a constant is a number, since ONNX has no such operator.

    Distributions don't look at their parameters, which have no values.
    """
    erfinv, validates = torch.erfinv, Distribution._validate_args
    torch.erfinv = _erfinv  # type: ignore[assignment]
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        torch.erfinv = erfinv
        Distribution.set_default_validate_args(validates)


def _erfinv(value: Tensor) -> Tensor:
    """Of one number."""
    if value.is_meta:
        return torch.empty_like(value)
    quantile = NormalDist().inv_cdf((float(value) + 1) / 2)
    return value.new_full(value.shape, quantile / math.sqrt(2))
