"""Finds the parts of quantized tensors among a checkpoint's tensors, and checks and maps them."""

from collections.abc import Callable, Collection
from math import prod
from typing import Any

import ml_dtypes  # noqa: F401 (teaches NumPy the names of small floats)
import numpy as np
from numpy.typing import NDArray

from snapexport.errors import UserError
from snapexport.exporter.integers import LARGEST_SCALE
from snapexport.exporter.quantized.quantization import AGAIN, ORIGINAL, Spans
from snapexport.exporter.tensor_file import Tensor
from snapexport.files.safetensors import TensorSpan

FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_DTYPES = FLOATS | {"I32": "<u4", "I64": "<i8", "U8": "uint8", "I8": "int8"}
_DTYPES |= {"F8_E4M3": "float8_e4m3fn", "F8_E8M0": "uint8"}

Found = dict[str, dict[str, TensorSpan]]


def without(stored: Spans, ends: Collection[str]) -> Spans:
    """The tensors but for parts that are not read, such as scales of activations."""
    return {name: one for name, one in stored.items() if name.rpartition(".")[2] not in ends}


def by_stem(
    stored: Spans, needed: Collection[str], possible: Collection[str] = ()
) -> tuple[Found, dict[str, TensorSpan]]:
    """The parts of each quantized tensor, by the name before them, and all other tensors.

    needed: the ends of the parts' names. Raises UserError where one is missing. possible: others.
    """
    ends, found = (*needed, *possible), Found()
    others = dict(stored)
    for name, span in stored.items():
        stem, _, end = name.rpartition(".")
        if end in ends:
            found.setdefault(stem, {})[end] = span
            del others[name]
    for stem, parts in found.items():
        for end in needed:
            if end not in parts:
                has = next(iter(parts))
                raise UserError(f"the checkpoint has {stem}.{has} without {stem}.{end}", AGAIN)
    return found, others


def replaced(
    stored: Spans,
    suffixes: tuple[str, str],
    made: Callable[[str, TensorSpan, TensorSpan], Tensor],
) -> dict[str, Tensor]:
    """The tensors, with pairs of values and scales replaced by what is `made` of them."""
    values, scales = suffixes
    stems = {
        name.removesuffix(end) for name in stored for end in suffixes if end and name.endswith(end)
    }
    parts = {stem + end for stem in stems for end in suffixes}
    for stem in sorted(stems):
        for end, other in ((values, scales), (scales, values)):
            if stem + end not in stored:
                raise UserError(
                    f"the checkpoint has the tensor {stem}{other} without {stem}{end}", AGAIN
                )
    kept: dict[str, Tensor] = {name: one for name, one in stored.items() if name not in parts}
    return kept | {
        stem: made(stem, stored[stem + values], stored[stem + scales]) for stem in sorted(stems)
    }


def require(name: str, span: TensorSpan, dtypes: Collection[str], shape: tuple[int, ...]) -> None:
    """Raise UserError for a part of another type or shape."""
    if span.dtype not in dtypes:
        raise UserError(
            f"the tensor {name} is stored as {span.dtype}, not as {' or '.join(dtypes)}", ORIGINAL
        )
    if span.shape != shape:
        raise UserError(
            f"the tensor {name} has shape {list(span.shape)}, the others want {list(shape)}", AGAIN
        )


def require_one(
    name: str, span: TensorSpan, dtypes: Collection[str], shape: tuple[int, int]
) -> None:
    """As `require`; one number, or one for each row, may have fewer dimensions."""
    alike = prod(span.shape) == prod(shape) and 1 in shape
    require(name, span, dtypes, span.shape if alike else shape)


def with_weight(stem: str, parts: Spans, others: dict[str, TensorSpan]) -> TensorSpan:
    """Take the weight that some parts belong to out of the others. Raises UserError."""
    if (found := others.pop(f"{stem}.weight", None)) is not None:
        return found
    raise UserError(f"the checkpoint has {stem}.{next(iter(parts))} without {stem}.weight", AGAIN)


def require_scaled(others: Spans) -> None:
    """Raise UserError for a quantized weight whose scales are missing."""
    for name, span in others.items():
        if name.endswith(".weight") and span.dtype in ("I8", "F8_E4M3", "U8", "I32"):
            raise UserError(f"the tensor {name} is {span.dtype} and has no scales", AGAIN)


def require_matrix(name: str, span: TensorSpan) -> tuple[int, int]:
    """The rows and columns of a part. Raises UserError."""
    if len(span.shape) != 2 or not prod(span.shape):
        raise UserError(f"the tensor {name} has shape {list(span.shape)}: no matrix", AGAIN)
    rows, columns = span.shape
    return rows, columns


def array(span: TensorSpan) -> NDArray[Any]:
    """A part, mapped."""
    dtype = np.dtype(_DTYPES[span.dtype])
    return np.memmap(span.file, dtype, "r", span.offset, shape=span.shape)


def as_scales(name: str, values: NDArray[Any]) -> NDArray[np.float32]:
    """Values in fp32. Raises UserError for one that is no scale."""
    scales: NDArray[np.float32] = np.ascontiguousarray(values).astype(np.float32)
    if not (np.abs(scales) < LARGEST_SCALE).all():
        raise UserError(f"a scale of the tensor {name} is NaN or infinite", AGAIN)
    return scales
