"""Defines what carries out one kind of prefill work.

A taker is made if its graph is loaded. It may use those that were made before it: a second vote
runs chunks, too. `table.py` lists the common ones, and adds those of methods.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from numpy.typing import NDArray

from snapexport.contract.pieces import Piece
from snapexport.runtime.engine.backend import Buffer, Buffers
from snapexport.runtime.engine.loaded import Loaded
from snapexport.runtime.engine.predictions import Prediction
from snapexport.runtime.engine.prompt_cache import PromptCache
from snapexport.runtime.engine.rows import Row


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


@runtime_checkable
class Refills(Protocol):
    """A taker that can fill a batch slot from its last prompt once more.

    cache: the prompt cache; None where a run takes a whole prompt. kept: outputs of the compress
    step, the vote's positions among them; empty where nothing is compressed.
    """

    cache: PromptCache | None
    kept: Buffers

    def refill(self, slot: int, prompt_length: int) -> None:
        """Compress into the batch slot, or copy where nothing is compressed."""


@runtime_checkable
class Resumes(Protocol):
    """A taker whose next piece may follow a row that was parked."""

    def resume(self, row: Row) -> None:
        """Go on from a parked row."""


Takers = Mapping[str, Taker]
"""By the kind of their pieces."""

MakeTaker = Callable[[Loaded, Takers], Taker | None]
"""Makes a taker beside those made before it; None where its graph is not loaded."""
