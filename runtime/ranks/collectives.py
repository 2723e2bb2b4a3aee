"""Defines what the ranks of a build exchange while a graph runs. Knows no transport."""

from typing import Any, Protocol

from numpy.typing import NDArray


class Collectives(Protocol):
    """One rank's side. All ranks call the same methods, in the same order, with equal shapes."""

    rank: int
    ranks: int

    def all_reduce(self, part: NDArray[Any]) -> None:
        """Put the sum of all ranks' parts in the place of this one's: the same bits in each."""

    def all_gather(self, part: NDArray[Any], parts: NDArray[Any]) -> None:
        """Write all ranks' parts [n,...] into `parts` [ranks*n,...], in the order of the ranks."""

    def all_to_all(self, parts: NDArray[Any]) -> None:
        """Send rows [r*n,(r+1)*n) of `parts` [ranks*n,...] to rank r, and put its rows there."""

    def hand(self, source: int, target: int, array: NDArray[Any]) -> None:
        """Write what `array` holds in the rank `source` into that of `target`. Others do nothing
        with theirs, whose size tells how much it is.
        """
