"""Chooses the weights that a build holds as integers, and their form (`--weights`)."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from snapexport.exporter.integers.fitted import Inputs
from snapexport.exporter.integers.joined import as_integers
from snapexport.exporter.integers.parts import TRANSPOSED, Weight
from snapexport.exporter.integers.rounded import RoundedWeight
from snapexport.exporter.integers.signed import signed, symmetric
from snapexport.exporter.integers.weight import Form, IntegerWeight
from snapexport.exporter.tensor_file import Tensor

if TYPE_CHECKING:
    from snapexport.exporter.architectures import Decoder

BLOCK = 64
INT4 = Form(4, BLOCK, None)
INT8 = Form(8, BLOCK, None)
_SENSITIVE = "k_proj.weight", "v_proj.weight"
"""Keys and values of few heads: all query heads of a group share their errors."""
_FEWER = 2
"""How many times fewer rows than columns they must have: then they are a small share of a model."""

_DEEP = 16
"""Layers from which on four down projections are a small share."""


class Choice(Protocol):
    """Says which weights become integers."""

    def of(self, name: str, tensor: Tensor) -> Weight | None:
        """A checkpoint's tensor as integers; None: it stays as it is.

        tensor: a matrix of a linear layer or an embedding [N,K], or a stack of experts [E,N,K].
        """


@dataclass(frozen=True)
class Kept:
    """What the checkpoint has as integers stays so (`--weights keep`).

    signed: around zero. floats: what it has as floats of 4 bits stays such.
    """

    signed: bool = False
    floats: bool = False

    def of(self, name: str, tensor: Tensor) -> Weight | None:
        """The integers as they are stored."""
        found = as_integers(tensor)
        if self.floats and isinstance(found, IntegerWeight) and (floats := found.floats):
            return floats
        return signed(found) if self.signed else found


@dataclass(frozen=True)
class Rounded:
    """Everything is rounded to a form, unless the checkpoint has it in as few bits.

    inputs: what layers read, where it is known. wide: weights that get 8 bits in any case. kept:
    the choice of what the checkpoint has.
    """

    form: Form
    inputs: Mapping[str, Inputs] = field(default_factory=dict)
    wide: Collection[str] = ()
    kept: Kept = Kept()

    def of(self, name: str, tensor: Tensor) -> Weight | None:
        """The integers of the checkpoint, or rounded ones."""
        form = INT8 if name in self.wide else _form(self.form, name, tensor.shape)
        found = self.kept.of(name, tensor)
        if found and found.form.bits <= form.bits:
            return found
        rounded = symmetric(form, tensor.shape[-1]) if self.kept.signed else form
        inputs = self.inputs.get(name.removesuffix(TRANSPOSED))
        return RoundedWeight(name, tensor, rounded, inputs) if rounded else None


def _form(form: Form, name: str, shape: tuple[int, ...]) -> Form:
    """The form of one weight: wide where errors weigh more than bits, narrow blocks of experts."""
    if len(shape) > 2:
        return replace(form, block=_block_of_experts(form.block, name, shape))
    return INT8 if name.endswith(_SENSITIVE) and shape[0] * _FEWER <= shape[1] else form


def _block_of_experts(largest: int, name: str, shape: tuple[int, ...]) -> int:
    """Both stacks have one block, which divides the experts' width and the hidden size."""
    _, rows, columns = shape
    other = rows // 2 if "gate" in name.rpartition(".")[2] else rows
    sizes = (block for block in (largest, largest // 2) if columns % block == other % block == 0)
    return next(sizes, largest)


def of_flag(
    flag: str | None,
    decoder: "Decoder",
    inputs: Mapping[str, Inputs] = MappingProxyType({}),
    *,
    signed: bool = False,
) -> Choice:
    """The choice of a value of `--weights`. inputs: what layers read, where it is known.

    signed: around zero, as `TargetCapabilities.signed_integers` says.
    """
    if flag == "keep":
        return Kept(signed, floats=signed)
    form, wide = (INT8, ()) if flag == "int8" else (INT4, _outer(decoder))
    return Rounded(form, inputs, wide, Kept(signed))


def _outer(decoder: "Decoder") -> list[str]:
    """Down projections of a deep model's first and last layers: they write its largest values."""
    count = len(decoder.layers)
    places = (0, 1, count - 2, count - 1) if count >= _DEEP else ()
    return [f"{decoder.names.layers}.{place}.mlp.down_proj.weight" for place in places]
