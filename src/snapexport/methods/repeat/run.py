"""Feeds a prompt once more after itself, so that the queries of all its tokens vote (KVzip).

A prompt is repeated a chunk at a time. Each chunk is at the prompt's end, where the one before was,
and only its votes stay.
"""

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from snapexport.contract import names
from snapexport.contract.pieces import CHUNK, Piece
from snapexport.methods.repeat.spec import GRAPH, PIECE, repeated_chunk
from snapexport.runtime.engine.backend import Buffer, Buffers
from snapexport.runtime.engine.bound_graph import BoundGraph, allocate
from snapexport.runtime.engine.loaded import Loaded
from snapexport.runtime.engine.method import MethodRun
from snapexport.runtime.engine.predictions import Prediction
from snapexport.runtime.engine.takers.chunks import Chunks
from snapexport.runtime.engine.takers.taker import Takers


class Repetition:
    """The votes of one prompt's repetition, and the graph that adds a chunk's to them."""

    hidden_states: Buffer | None = None

    def __init__(self, loaded: Loaded, chunks: Chunks) -> None:
        self._chunks, self._memory = chunks, loaded.backend.memory
        self._chunk = loaded.limits.prefill_chunk
        entry = loaded.manifest.graphs[GRAPH]
        outputs = {spec.name: spec for spec in entry.outputs}
        self.votes: Buffers = {  # the compress step reads them
            name: chunks.kept[name] for name in map(names.past_of, outputs)
        }
        after = {names.present_of(name): buffer for name, buffer in self.votes.items()}
        self._copied: Buffers = {}
        if not loaded.backend.binds_rows:  # it does not write over its inputs
            after = {name: self._memory.allocate(spec) for name, spec in outputs.items()}
            self._copied = {names.past_of(name): buffer for name, buffer in after.items()}
        buffers = allocate(self._memory, entry, chunks.buffers | self.votes | after)
        self._graph = BoundGraph(loaded.backend, GRAPH, entry, buffers)

    @classmethod
    def of(cls, loaded: Loaded, takers: Takers) -> "Repetition | None":
        """None where the vote graph is not loaded."""
        if GRAPH not in loaded.graphs.names:
            return None
        chunks = takers[CHUNK]
        assert isinstance(chunks, Chunks), "a single shot repeats nothing"
        return cls(loaded, chunks)

    def take(
        self, slot: int, prompt: tuple[int, ...], piece: Piece, temperature: float
    ) -> Prediction:
        """Run a repeated chunk; the last one fills the slot.

        The prediction is of the token after the prompt, or of the chunk if that is not finite.
        """
        if piece.start == 0:
            self._forget()
        tokens = repeated_chunk(prompt, self._chunk, piece.start)
        prediction = self._chunks.append(prompt, tokens, whole_cache=True)
        if not prediction.is_finite:
            return prediction
        self._add_votes(len(prompt))
        if piece.is_last:
            self._chunks.fill(slot, len(prompt), len(prompt) + len(tokens))
        return self._chunks.after_prompt

    def _forget(self) -> None:
        """Forget the votes of another prompt."""
        for buffer in self.votes.values():
            self._memory.zero(buffer)

    def _add_votes(self, prompt_length: int) -> None:
        """Add the votes of the chunk that was run at the prompt's end."""
        self._graph.arrays[names.PROMPT_LENGTH][:] = prompt_length
        self._graph.run()
        for name, after in self._copied.items():
            self._memory.copy(self.votes[name], after)

    def slot_positions(self, prompt_length: int) -> Mapping[str, NDArray[Any]]:
        """The positions after the prompt's own chunks: the same graph compresses."""
        return self._chunks.slot_positions(prompt_length)

    def clear(self) -> None:
        """Do nothing: votes are zeroed before each prompt."""


class RepeatRun(MethodRun):
    """A prompt is repeated, chunk by chunk."""

    takers = ((PIECE, Repetition.of),)


RUN = RepeatRun()
