"""Feeds a prompt once more behind itself, so that the queries of all its tokens vote (KVzip).

A prompt is repeated a prefill chunk at a time. Each chunk stands at the prompt's end, in the place
of the one before, and nothing of it stays but its votes.
"""

from collections.abc import Sequence

from snapexport.contract import names
from snapexport.contract.manifest import GraphEntry
from snapexport.runtime.engine.backend import Buffers, GraphBackend
from snapexport.runtime.engine.bound_graph import BoundGraph, allocate

OVERLAP = 8
"""Tokens with which a chunk begins again, since it has to tell the model where in the prompt it is.
KVzip's prompt names as many."""


def repeated_starts(prompt_length: int, chunk: int) -> list[int]:
    """Where in the prompt each repeated chunk begins; the last one ends with the prompt."""
    step = chunk - min(OVERLAP, chunk // 2)
    last = max(0, prompt_length - chunk)
    return [*range(0, last, step), last]


def repeated_chunk(prompt: Sequence[int], chunk: int, index: int) -> list[int]:
    """The tokens of a repeated chunk. A shorter prompt is repeated until it fills one."""
    start = repeated_starts(len(prompt), chunk)[index]
    tokens = list(prompt[start : start + chunk])
    return (tokens * -(-chunk // len(tokens)))[:chunk]


class Repetition:
    """The votes of one prompt's repetition, and the graph that adds a chunk's to them.

    votes: inputs of that graph and of compress, in the backend's memory.
    """

    def __init__(
        self, backend: GraphBackend, entry: GraphEntry, given: Buffers, held_whole: int
    ) -> None:
        """given: the prompt cache's keys and values, and prefill's query windows. held_whole: as
        `CacheGeometry` has it.
        """
        self._held_whole = held_whole
        self._memory = backend.memory
        outputs = {spec.name: spec for spec in entry.outputs}
        self.votes = {
            names.past_of(name): self._memory.allocate(spec) for name, spec in outputs.items()
        }
        after = {names.present_of(name): one for name, one in self.votes.items()}
        self._copied: Buffers = {}
        if not backend.binds_rows:  # it does not write over its inputs
            after = {name: self._memory.allocate(spec) for name, spec in outputs.items()}
            self._copied = {names.past_of(name): one for name, one in after.items()}
        buffers = allocate(self._memory, entry, given | self.votes | after)
        self._graph = BoundGraph(backend, "vote", entry, buffers)

    def follows(self, prompt_length: int) -> bool:
        """Whether such a prompt is repeated: not if every vote keeps all of it."""
        return prompt_length > self._held_whole

    def begin(self) -> None:
        """Forget the votes of another prompt."""
        for one in self.votes.values():
            self._memory.zero(one)

    def add(self, prompt_length: int) -> None:
        """Add the votes of the chunk that prefill has just run at the prompt's end."""
        self._graph.arrays[names.PROMPT_LENGTH][:] = prompt_length
        self._graph.run()
        for name, after in self._copied.items():
            self._memory.copy(self.votes[name], after)
