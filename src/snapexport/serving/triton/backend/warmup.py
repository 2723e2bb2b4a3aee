"""Every decode graph, run once before anybody asks.

Triton's own warm-up is one request: of the decode graphs it runs the one for the fewest slots.
"""

import numpy as np

from snapexport.runtime.executor import Executor


def run_every_decode(engine: Executor) -> None:
    """A decode step of idle slots on each graph. Before any request, since idle slots lose all."""
    for count in engine.limits.decode_batches:
        idle = np.zeros(count, np.int64)
        engine.decode(idle, idle, idle)
