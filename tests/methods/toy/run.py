from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from snapexport.contract import names
from snapexport.contract.pieces import CHUNK, Piece
from snapexport.runtime.engine.bound_graph import BoundGraph, Prediction, allocate
from snapexport.runtime.engine.chunks import Chunks
from snapexport.runtime.engine.method import Loaded, MethodRun, Takers
from tests.methods.toy.spec import GRAPH, LAST, PIECE


@dataclass
class ToyTaker:
    """Compresses the prompt at the end of its own pieces, and runs the toy graph in each."""

    chunks: Chunks
    graph: BoundGraph
    last: list[int] = field(default_factory=list)
    hidden_states = None

    @classmethod
    def of(cls, loaded: Loaded, takers: Takers) -> "ToyTaker | None":
        if GRAPH not in loaded.graphs.names:
            return None
        entry, chunks = loaded.manifest.graphs[GRAPH], takers[CHUNK]
        assert isinstance(chunks, Chunks)
        buffers = allocate(loaded.backend.memory, entry, {})
        return cls(chunks, BoundGraph(loaded.backend, GRAPH, entry, buffers))

    def take(
        self, slot: int, prompt: tuple[int, ...], piece: Piece, temperature: float
    ) -> Prediction:
        self.graph.arrays[names.PROMPT_LENGTH][:] = len(prompt)
        self.graph.run()
        self.last += self.graph.arrays[LAST].tolist()
        if piece.is_last:
            self.chunks.fill(slot, len(prompt), len(prompt))
        return self.chunks.after_prompt

    def slot_positions(self, prompt_length: int) -> Mapping[str, Any]:
        return self.chunks.slot_positions(prompt_length)

    def clear(self) -> None:
        pass


class ToyRun(MethodRun):
    takers = ((PIECE, ToyTaker.of),)


RUN = ToyRun()
