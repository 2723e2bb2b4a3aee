"""Weights of integers that others were joined to: rows in turn, rows one after another, stacks."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapexport.exporter.derived.stack import InTurn, Rows, Stack
from snapexport.exporter.integers.weight import Form, IntegerRows, IntegerWeight
from snapexport.exporter.tensor_file import Tensor

Join = Callable[[Sequence[NDArray[Any]]], NDArray[Any]]


@dataclass(frozen=True)
class JoinedIntegers(IntegerWeight):
    """The rows of two weights of one form: in turn, or one after another: [n+m,K]."""

    first: IntegerWeight
    second: IntegerWeight
    in_turn: bool

    @property
    def shape(self) -> tuple[int, ...]:
        (first, columns), (second, _) = self.first.shape, self.second.shape
        return first + second, columns

    @property
    def form(self) -> Form:
        return self.first.form

    def rows(self, most: int) -> Iterator[IntegerRows]:
        """All rows in order."""
        if not self.in_turn:
            yield from self.first.rows(most)
            yield from self.second.rows(most)
            return
        step = max(1, most // 2 // self.shape[1])
        both = (_in_steps(one.rows(most // 2), step) for one in (self.first, self.second))
        for pair in zip(*both, strict=True):
            yield _joined(pair, _interleaved)


@dataclass(frozen=True)
class IntegerStack:
    """Weights of one form and shape, one after another: [E,N,K]."""

    parts: tuple[IntegerWeight, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self.parts), *self.parts[0].shape

    @property
    def form(self) -> Form:
        return self.parts[0].form

    @property
    def order(self) -> None:
        """Stacks are of columns as they lie."""
        return None

    def rows(self, most: int) -> Iterator[IntegerRows]:
        """The rows of all weights in order."""
        for part in self.parts:
            yield from part.rows(most)


def as_integers(tensor: Tensor) -> IntegerWeight | IntegerStack | None:
    """A tensor as integers, if all that it is made of is such, in one form and as columns lie."""
    match tensor:
        case IntegerWeight():
            return tensor
        case InTurn() | Rows() if found := _of_one_form(tensor.parts):
            return JoinedIntegers(found[0], found[1], isinstance(tensor, InTurn))
        case Stack() if found := _of_one_form(tensor.parts):
            return IntegerStack(tuple(found))
    return None


def _of_one_form(tensors: Sequence[Tensor]) -> list[IntegerWeight]:
    """The tensors as integers; none if they don't fit together."""
    found = [one for each in tensors if isinstance(one := as_integers(each), IntegerWeight)]
    fits = len(found) == len(tensors) and len({one.form for one in found}) == 1
    return found if fits and not found[0].form.ordered else []


def _in_steps(rows: Iterator[IntegerRows], step: int) -> Iterator[IntegerRows]:
    """The rows, exactly `step` at a time but for the last."""
    rest: list[IntegerRows] = []
    for some in rows:
        rest.append(some)
        if sum(len(one.q) for one in rest) >= step:
            whole = _joined(rest, np.concatenate)
            full = len(whole.q) // step * step
            for start in range(0, full, step):
                yield _cut(whole, slice(start, start + step))
            rest = [_cut(whole, slice(full, None))] if full < len(whole.q) else []
    if rest:
        yield _joined(rest, np.concatenate)


def _interleaved(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return np.stack(arrays, axis=1).reshape(-1, arrays[0].shape[1])


def _joined(some: Sequence[IntegerRows], join: Join) -> IntegerRows:
    def of(values: list[Any]) -> NDArray[Any] | None:
        return None if values[0] is None else join(values)

    return IntegerRows(
        join([one.q for one in some]),
        join([one.scales for one in some]),
        of([one.zeros for one in some]),
        of([one.minima for one in some]),
    )


def _cut(rows: IntegerRows, part: slice) -> IntegerRows:
    zeros = None if rows.zeros is None else rows.zeros[part]
    minima = None if rows.minima is None else rows.minima[part]
    return IntegerRows(rows.q[part], rows.scales[part], zeros, minima)
