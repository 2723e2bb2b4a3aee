"""Loads the weights that graphs take as inputs, one copy for all graphs.

On the CPU they are mapped from the build's files. On a GPU they are copied to it, file by file.
"""

from collections.abc import Iterable

import numpy as np

from snapexport.contract.build_directory import Build
from snapexport.contract.manifest import GraphName
from snapexport.runtime.engine.backend import Buffers, Memory


def load_weights(build: Build, graphs: Iterable[GraphName], memory: Memory) -> Buffers:
    """The weights that these graphs take as inputs, by name. Raises UserError."""
    return {
        spec.name: memory.load(spec, np.memmap(span.file, np.uint8, "r", span.offset, span.nbytes))
        for spec, span in build.shared_weights(graphs)
    }
