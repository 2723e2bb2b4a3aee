"""The vote's options, each a few lines of ONNX text that stand in the body of SnapKVSelect.

A stage is a file, and reads what the one before it wrote: softmax -> vote -> pool -> group. A new
option is a new entry of its stage's OPTIONS. No heavy import: the command line reads the names.
"""

from snapexport.graphs.functions.vote import group, pool, softmax, vote

STAGES = {
    "softmax": softmax.OPTIONS,
    "vote": vote.OPTIONS,
    "pool": pool.OPTIONS,
    "group": group.OPTIONS,
}

DEFAULTS = {"softmax": "candidates", "vote": "sum", "pool": "avg", "group": "mean"}
"""SnapStream's vote, as the design fixes it."""
