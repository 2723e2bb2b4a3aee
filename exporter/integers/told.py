"""Tells how a build's weights are stored: how many matrices in each form, and bits a weight."""

from collections import Counter
from collections.abc import Iterable, Mapping
from math import prod

from snapexport.exporter.integers.joined import as_integers
from snapexport.exporter.integers.parts import TRANSPOSED, Weight, whole
from snapexport.exporter.integers.rounded import RoundedWeight
from snapexport.exporter.integers.signed import refusal
from snapexport.exporter.integers.weight import Form
from snapexport.exporter.tensor_file import Tensor
from snapexport.files.dtypes import BY_SAFETENSORS
from snapexport.files.safetensors import TensorSpan


def label(form: Form) -> str:
    """A form, such as `int4-32+minima`: 4 bits, blocks of 32."""
    if form.floats:
        return f"fp{form.bits}-{form.block}"
    extra = "+zeros" * (form.zero is None) + "+minima" * form.minima + "+order" * form.ordered
    return f"int{form.bits}-{form.block}{extra}"


def matrices(placed: Mapping[str, TensorSpan], integers: Mapping[str, Weight]) -> dict[str, int]:
    """{form or dtype: how many matrices, and stacks of experts, have it}."""
    forms = Counter(label(weight.form) for weight in integers.values())
    for name, span in placed.items():
        if len(span.shape) > 1 and whole(name) not in integers:
            forms[_flag(span.dtype)] += 1
    return dict(forms.most_common())


def bits_per_weight(placed: Mapping[str, TensorSpan], integers: Mapping[str, Weight]) -> float:
    """Stored bits of all matrices, over their elements. What is stored in two forms counts once."""
    elements = {name: prod(weight.shape) for name, weight in integers.items()}
    nbytes = 0
    for name, span in placed.items():
        if whole(name) in integers:
            nbytes += span.nbytes
        elif len(span.shape) > 1:
            nbytes += span.nbytes
            elements.setdefault(name, prod(span.shape))
    return round(8 * nbytes / sum(elements.values()), 3)


def notes(
    tensors: Mapping[str, Tensor],
    read: Iterable[str],
    integers: Mapping[str, Weight],
    dtype: str,
    *,
    signed: bool = False,
) -> list[str]:
    """What becomes of integers of a checkpoint that are not kept.

    read: names of tensors and parts that graphs read. integers: what they read as such. signed:
    around zero.
    """
    again = [
        found.form.bits
        for name, weight in integers.items()
        if isinstance(weight, RoundedWeight)
        and (found := as_integers(tensors[name.removesuffix(TRANSPOSED)]))
    ]
    others = (as_integers(tensors[name]) for name in set(read) if name in tensors)
    dequantized = Counter(
        refusal(one.form, one.shape) if signed else None for one in others if one is not None
    )
    told = []
    if again:
        told.append(
            f"{_matrices(len(again))} rounded a second time: the checkpoint has integers in "
            f"containers of {max(again)} bits; --weights keep leaves them as they are"
        )
    for reason, count in dequantized.items():
        text = f"{_matrices(count)} dequantized to {dtype}, integers in the checkpoint"
        told.append(text + (f": the target reads none of {reason}" if reason else ""))
    return told


def _matrices(count: int) -> str:
    return f"{count} matrices are" if count > 1 else "1 matrix is"


def _flag(dtype: str) -> str:
    found = BY_SAFETENSORS[dtype]
    return found.flag or found.numpy
