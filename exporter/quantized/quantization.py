"""A checkpoint's quantization, and helpers that read `quantization_config`.

A method is a file with a class of its own; `config.py` has their table.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from snapexport.errors import UserError
from snapexport.exporter.tensor_file import Tensor
from snapexport.files.safetensors import TensorSpan

KEY = "quantization_config"
ORIGINAL = "start from the original checkpoint"
LARGEST_GROUP = 1 << 20
AGAIN = "download the checkpoint again: the file is damaged or incomplete"

Spans = Mapping[str, TensorSpan]
Values = Mapping[str, tuple[object, ...]]


class Quantization(ABC):
    """How a checkpoint's weights are quantized.

    kind: the method's name. block: rows and columns that share an fp8 scale. of_some_families:
    whether only families that are published in it are read. told: what a build leaves out.
    """

    kind: ClassVar[str]
    of_some_families: ClassVar[bool] = False
    block: tuple[int, int] = (0, 0)
    told: tuple[str, ...] = ()

    @abstractmethod
    def tensors(self, stored: Spans) -> dict[str, Tensor]:
        """All tensors under the names of the model's parameters. Raises UserError."""


def require_names(name: str, value: object) -> None:
    """Raise UserError unless a key has a list of names, or nothing."""
    if value is None or (isinstance(value, list) and all(isinstance(one, str) for one in value)):
        return
    raise UserError(f"{KEY}: {name} is no list of names", "correct config.json")


def require_values(
    kind: str, given: Mapping[str, Any], known: Values, neutral: Iterable[str] = ()
) -> None:
    """Raise UserError for a key that is not known, or that has another value than these.

    neutral: keys that can have any value, for they say how the weights were made.
    """
    for name, value in given.items():
        if name in neutral:
            continue
        if name not in known:
            raise UserError(
                f"{KEY} of the method {kind} has the unknown key {name!r:.100}", ORIGINAL
            )
        require_value(name, value, known[name])


def require_value(name: str, value: object, known: tuple[object, ...]) -> None:
    """Raise UserError for a value that is none of these."""
    if not any(type(value) is type(one) and value == one for one in known):
        raise UserError(
            f"{KEY}: {name} {value!r:.100} is not supported",
            f"{ORIGINAL}; {name} may be {' or '.join(map(repr, known))}",
        )


def numbers(name: str, value: object, known: Iterable[int]) -> int:
    """A number that is one of these. Raises UserError."""
    listed = tuple(known)
    require_value(name, value, listed)
    assert isinstance(value, int)
    return value


def group_size(value: object) -> int | None:
    """Columns that share a scale; None: all of a row. Raises UserError."""
    if type(value) is int and (value == -1 or 1 <= value <= LARGEST_GROUP):
        return None if value == -1 else value
    raise UserError(
        f"{KEY}: group_size is {value!r:.100}, not -1 or a number from 1 to {LARGEST_GROUP}",
        "correct config.json",
    )
