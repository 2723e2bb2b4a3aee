"""The vote's options, each a few lines of ONNX text in the body of SnapKVSelect.

Each file is a stage, and reads the output of the stage before: softmax -> vote -> pool -> group.
To add an option, add an entry to its stage's OPTIONS. The command line imports this package for the
names, so it imports nothing heavy.
"""

from snapexport.graphs.functions.vote import group, pool, softmax, vote

STAGES = {
    "softmax": softmax.OPTIONS,
    "vote": vote.OPTIONS,
    "pool": pool.OPTIONS,
    "group": group.OPTIONS,
}

DEFAULTS = {"softmax": "causal", "vote": "sum-squares", "pool": "avg", "group": "mean"}
"""Not SnapStream's vote (candidates, sum): squares of the model's own attention kept more."""
