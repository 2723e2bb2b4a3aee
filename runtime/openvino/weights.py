"""Maps the weights of a build from their files, once for all graphs that read them."""

import mmap
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class WeightSpan:
    """The place of a weight's bytes."""

    file: Path
    offset: int
    nbytes: int


EMPTY = WeightSpan(Path(), 0, 0)
"""No bytes."""
_MAPS, _SMALL, _LARGE = 400, 1 << 16, 4 << 20
"""A map keeps a file open. Small weights are read, and beyond so many maps all but large ones."""


class MappedWeights:
    """Weights of a build, mapped once for all graphs that read them."""

    def __init__(self) -> None:
        self._maps: list[mmap.mmap] = []
        self._bytes: dict[WeightSpan, NDArray[np.uint8]] = {EMPTY: np.zeros(0, np.uint8)}

    def bytes_of(self, span: WeightSpan) -> NDArray[np.uint8]:
        """A weight's bytes, at an address that lasts. Raises ValueError for a file without them."""
        if span not in self._bytes:
            least = _SMALL if len(self._maps) < _MAPS else _LARGE
            self._bytes[span] = self._map(span) if span.nbytes > least else _read(span)
        return self._bytes[span]

    def _map(self, span: WeightSpan) -> NDArray[np.uint8]:
        before = span.offset % mmap.ALLOCATIONGRANULARITY
        size, start = before + span.nbytes, span.offset - before
        with span.file.open("rb") as file:
            # Nothing writes to it: OpenVINO takes no read-only array.
            mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY, offset=start)
        self._maps.append(mapped)
        return np.frombuffer(mapped, np.uint8, span.nbytes, before)

    def leave_to_the_disk(self) -> None:
        """Free the memory of what was read. What is read again comes from the files."""
        if hasattr(mmap, "MADV_DONTNEED"):
            for mapped in self._maps:
                mapped.madvise(mmap.MADV_DONTNEED)


def _read(span: WeightSpan) -> NDArray[np.uint8]:
    found = np.fromfile(span.file, np.uint8, span.nbytes, offset=span.offset)
    if found.size < span.nbytes:
        raise ValueError(f"{span.file.name} is cut off")
    return found
