"""What every engine's graph can do, once it is tied to its buffers."""

from collections.abc import Mapping
from typing import Any, Protocol

from numpy.typing import NDArray

HostArrays = Mapping[str, NDArray[Any]]
"""What the host writes before a run and reads after it, by the graph's names."""


class BoundGraph(Protocol):
    """Write `arrays`, `run`, read `arrays`."""

    @property
    def arrays(self) -> HostArrays:
        """The host's side of the inputs and outputs that have one."""
        ...

    def run(self) -> None:
        """From the inputs to the outputs that the host reads each time."""
        ...

    def rows(self, output: str, start: int, stop: int) -> NDArray[Any]:
        """Rows of an output in `arrays`, which are brought to the host now if no run does it."""
        ...
