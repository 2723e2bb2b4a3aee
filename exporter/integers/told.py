"""Tells how a build's weights are stored: how many matrices in each form, and bits a weight."""

from collections import Counter
from collections.abc import Mapping
from math import prod

from snapexport.exporter.integers.parts import Weight, whole
from snapexport.exporter.integers.weight import Form
from snapexport.files.dtypes import BY_SAFETENSORS
from snapexport.files.safetensors import TensorSpan


def label(form: Form) -> str:
    """A form, such as `int4-32+minima`: 4 bits, blocks of 32."""
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


def _flag(dtype: str) -> str:
    found = BY_SAFETENSORS[dtype]
    return found.flag or found.numpy
