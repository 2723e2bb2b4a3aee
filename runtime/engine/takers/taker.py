"""Defines what carries out one kind of prefill work.

A taker is made if its graph is loaded. It may use those that were made before it: a second vote
runs chunks, too. `table.py` lists the built-in ones.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from numpy.typing import NDArray

from snapexport.runtime.engine.backend import Buffer
from snapexport.runtime.engine.loaded import Loaded
from snapexport.runtime.engine.predictions import Prediction
from snapexport.runtime.requests.pieces import Piece


class Taker(Protocol):
    """Takes the pieces of one kind, in their order."""

    hidden_states: Buffer | None
    """Of the latest piece, [1,C,E], of a build with --mtp; None if nothing was run for it."""

    def take(
        self, slot: int, prompt: tuple[int, ...], piece: Piece, temperature: float
    ) -> Prediction:
        """Run a piece; a prompt's last one fills the batch slot.

        The prediction is of the token after the piece, or after the prompt if the cache has that.
        """

    def slot_positions(self, prompt_length: int) -> Mapping[str, NDArray[Any]]:
        """The position that each cache slot holds after a last piece, by extend's input names."""

    def clear(self) -> None:
        """Zero what a prompt may have left NaN in, beside the batch slot."""


Takers = Mapping[str, Taker]
"""By the kind of their pieces."""

MakeTaker = Callable[[Loaded, Takers], Taker | None]
"""Makes a taker beside those made before it; None where its graph is not loaded."""
