"""Chooses the weights that a build holds as integers, and their form (`--weights`)."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from snapexport.exporter.integers.joined import as_integers
from snapexport.exporter.integers.parts import Weight
from snapexport.exporter.integers.rounded import RoundedWeight, Rounding, to_nearest
from snapexport.exporter.integers.weight import Form
from snapexport.exporter.tensor_file import Tensor

if TYPE_CHECKING:
    from snapexport.exporter.architectures import Decoder

INT4 = Form(4, 32, 8)
INT8 = Form(8, 32, 128)


class Choice(Protocol):
    """Says which weights become integers."""

    def of(self, name: str, tensor: Tensor) -> Weight | None:
        """A checkpoint's tensor as integers; None: it stays as it is.

        tensor: a matrix of a linear layer or an embedding [N,K], or a stack of experts [E,N,K].
        """


@dataclass(frozen=True)
class Kept:
    """What the checkpoint has as integers stays so (`--weights keep`)."""

    def of(self, name: str, tensor: Tensor) -> Weight | None:
        """The integers as they are stored."""
        return as_integers(tensor)


@dataclass(frozen=True)
class Rounded:
    """Everything is rounded to a form, unless the checkpoint has it in as few bits.

    wide: names of weights that get 8 bits in any case.
    """

    form: Form
    wide: Collection[str] = ()
    rounding: Rounding = to_nearest

    def of(self, name: str, tensor: Tensor) -> Weight | None:
        """The integers of the checkpoint, or rounded ones."""
        form = INT8 if name in self.wide else self.form
        found = as_integers(tensor)
        if found and found.form.bits <= form.bits:
            return found
        return RoundedWeight(name, tensor, form, self.rounding)


def of_flag(flag: str | None, decoder: "Decoder") -> Choice:
    """The choice of a value of `--weights`."""
    if flag == "keep":
        return Kept()
    return Rounded(INT8 if flag == "int8" else INT4)
