"""Runs a graph that is cut at its collectives: a session a segment, between which ranks meet.

Knows no transport and no batch slot.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from snapexport.contract import names
from snapexport.contract.manifest import GraphEntry, TensorSpec
from snapexport.runtime.engine.backend import Buffer, Buffers, Memory, Work
from snapexport.runtime.ort.session import Session
from snapexport.runtime.ranks.collectives import Collectives

Open = Callable[[Path, GraphEntry], Session]


class Segments:
    """The sessions of one graph's segments."""

    captured = False

    def __init__(
        self,
        directory: Path,
        entries: Sequence[GraphEntry],
        open_session: Open,
        collectives: Collectives,
        memory: Memory,
    ) -> None:
        """Raises UserError for a file that is not the segment of the manifest."""
        self._entries, self._collectives = entries, collectives
        self._sessions = [open_session(directory / entry.file, entry) for entry in entries]
        self._between = _allocate(entries, memory, collectives.ranks)

    def bind(self, buffers: Buffers) -> Work:
        """Tie each segment's inputs and outputs to buffers: the graph's, and those between."""
        every = self._between | buffers
        works: list[Work] = []
        for session, entry in zip(self._sessions, self._entries, strict=True):
            works.append(session.bind(every))
            works += [self._exchange(spec.name, every) for spec in _exchanged(entry)]

        def run() -> None:
            for work in works:
                work()

        return run

    def operators(self) -> dict[str, dict[str, int]]:
        """Count the nodes of each operator that each execution provider runs."""
        found: dict[str, dict[str, int]] = {}
        for session in self._sessions:
            for provider, counts in session.operators().items():
                total = found.setdefault(provider, {})
                for name, count in counts.items():
                    total[name] = total.get(name, 0) + count
        return found

    def _exchange(self, name: str, buffers: Buffers) -> Work:
        part = buffers[name].host
        if names.is_reduced(name):
            return lambda: self._collectives.all_reduce(part)
        if names.is_exchanged(name):
            return lambda: self._collectives.all_to_all(part)
        every = buffers[str(names.gathered_of(name))].host
        return lambda: self._collectives.all_gather(part, every)


def _exchanged(entry: GraphEntry) -> list[TensorSpec]:
    """The outputs of a segment that all ranks exchange, in their order."""
    return [spec for spec in entry.outputs if _is_exchanged(spec.name)]


def _is_exchanged(name: str) -> bool:
    in_place = names.is_reduced(name) or names.is_exchanged(name)
    return in_place or names.gathered_of(name) is not None


def _allocate(entries: Sequence[GraphEntry], memory: Memory, ranks: int) -> Buffers:
    """A buffer for each tensor between segments. One that nobody reads any more is used again."""
    last = {spec.name: at for at, entry in enumerate(entries) for spec in entry.inputs}
    buffers: Buffers = {}
    free: dict[tuple[str, tuple[int, ...]], list[Buffer]] = {}

    def take(spec: TensorSpec) -> None:
        idle = free.get((spec.dtype, tuple(spec.shape)))
        buffers[spec.name] = idle.pop() if idle else memory.allocate(spec)

    for at, entry in enumerate(entries):
        for spec in entry.outputs:
            if names.is_between(spec.name):
                take(spec)
            if gathered := names.gathered_of(spec.name):
                rows, *others = spec.shape
                take(TensorSpec(name=gathered, dtype=spec.dtype, shape=[ranks * rows, *others]))
        for name in [name for name in buffers if last.get(name, at) == at]:
            one = buffers[name]
            free.setdefault((one.dtype, one.shape), []).append(one)
            last[name] = -1
    return buffers
