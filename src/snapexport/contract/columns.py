"""Columns: one value for all layers of a model, or for all of its caches, or one for each."""

from collections.abc import Sequence
from typing import TypeAlias, TypeVar

Value = TypeVar("Value")
Column: TypeAlias = Value | tuple[Value, ...]


def folded(values: Sequence[Value]) -> Column[Value]:
    """One value if all are the same, else all of them."""
    return values[0] if len(set(values)) == 1 else tuple(values)


def value_at(column: Column[Value], index: int) -> Value:
    """The value of a layer, or of a cache."""
    return column[index] if isinstance(column, tuple) else column
