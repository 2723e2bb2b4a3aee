"""Our operators, as ONNX model-local functions whose bodies are standard operators.

The body is the definition. ONNX Runtime inlines it; TensorRT takes the plugin of the same name
where one is registered, and the body where none is.
"""

import onnx

from snapexport.graphs.functions import query_window, ring_slot, snapkv_select, snapstream_gather

TEXTS = {
    "RingSlot": ring_slot.TEXT,
    "QueryWindow": query_window.TEXT,
    "SnapKVSelect": snapkv_select.TEXT,
    "SnapStreamGather": snapstream_gather.TEXT,
}


def function(name: str) -> onnx.FunctionProto:
    """The model-local function of that name."""
    return onnx.parser.parse_function(TEXTS[name])
