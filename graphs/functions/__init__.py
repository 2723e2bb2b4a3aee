"""Our operators, as ONNX model-local functions whose bodies are standard operators.

The body is the definition. ONNX Runtime inlines it, and the build does so for targets without
functions (graphs/targets/inlined.py). TensorRT takes the body, or a plugin of the same name
(graphs/targets/tensorrt/votes.py). A pass that appends a call says which body the call needs
(`passes/base.call`).
"""

EXPERTS = ("ExpertsGathered", "ExpertsInBlocks", "ExpertsInEveryBlock")
NAMES = (
    *("RingSlot", "RingFill", "QueryWindow", "SnapKVSelect", "SnapStreamGather"),
    *EXPERTS,
)
"""In the order in which a graph holds their bodies. Others come before the experts', as called."""
