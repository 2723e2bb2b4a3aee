"""Takes a whole padded prompt in one run, which writes the batch slot."""

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from snapexport.contract import names
from snapexport.contract.pieces import Piece
from snapexport.runtime.engine.backend import Buffer, Buffers
from snapexport.runtime.engine.bound_graph import write_tokens
from snapexport.runtime.engine.fill_slot import FillByGraph
from snapexport.runtime.engine.kept_positions import slot_positions
from snapexport.runtime.engine.loaded import Loaded
from snapexport.runtime.engine.predictions import FIRST, Prediction, Predictions


class SingleShot:
    """The chunk of a build whose chunk is as long as the longest prompt."""

    cache = None

    def __init__(self, loaded: Loaded) -> None:
        *_, name = loaded.graphs.prefill.values()
        self._loaded = loaded
        self._into_slot = FillByGraph.of(loaded, name, loaded.weights)
        self.kept: Buffers = self._into_slot.graph.buffers
        self.hidden_states: Buffer | None = self.kept.get(names.HIDDEN_STATES)

    def take(
        self, slot: int, prompt: tuple[int, ...], piece: Piece, temperature: float
    ) -> Prediction:
        """Fill the batch slot; the prediction is of the token after the prompt."""
        assert piece.is_last and len(prompt) == piece.end
        write_tokens(self._into_slot.graph.arrays, prompt, temperature)
        self.refill(slot, len(prompt))
        return Predictions(self._into_slot.graph, FIRST)[0]

    def refill(self, slot: int, prompt_length: int) -> None:
        """Run the last prompt again: compression is a part of it."""
        self._into_slot.fill(slot, prompt_length)

    def slot_positions(self, prompt_length: int) -> Mapping[str, NDArray[Any]]:
        """Of the ring by the prompt's length, of the others as the vote kept them."""
        return slot_positions(self._loaded, self.kept, prompt_length)

    def clear(self) -> None:
        """Do nothing: there is no cache but the batch slot's."""
