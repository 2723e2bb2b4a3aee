"""Our operators, as ONNX model-local functions whose bodies are standard operators.

The body is the definition. ONNX Runtime inlines it. TensorRT takes the body, or a plugin of the
same name (graphs/targets/tensorrt/plugin_calls.py).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from snapexport.contract.geometry import DEFAULT_POOL_KERNEL
from snapexport.graphs.functions import (
    experts,
    extend_gather,
    int8_cache,
    query_window,
    repetition,
    ring_fill,
    ring_slot,
    snapkv_select,
    snapstream_gather,
)
from snapexport.graphs.functions.vote import DEFAULTS

if TYPE_CHECKING:
    import onnx

EXPERTS = ("ExpertsGathered", "ExpertsInBlocks", "ExpertsInEveryBlock")
NAMES = (
    *("RingSlot", "RingFill", "QueryWindow", "SnapKVSelect", "SnapStreamGather", "ExtendGather"),
    *("RepetitionVotes", "SelectVoted"),
    *("Int8Scale", "Int8Rows"),
    *EXPERTS,
)


def function(
    name: str,
    vote: Mapping[str, str] = DEFAULTS,
    softcapped: bool = False,
    pool_kernel: int = DEFAULT_POOL_KERNEL,
    biased: bool = False,
    spare: bool = False,
) -> "onnx.FunctionProto":
    """The model-local function `name`, one of NAMES.

    Of votes alone: vote, the option of each stage; softcapped, whether it caps its scores;
    pool_kernel, which must equal the calls' attribute. Of EXPERTS: whether they are biased. Of
    ExtendGather: whether rings have spare slots.
    """
    import onnx

    if name in EXPERTS:
        return onnx.parser.parse_function(experts.text(name, biased))
    return onnx.parser.parse_function(_text(name, vote, softcapped, pool_kernel, spare))


def _text(
    name: str, vote: Mapping[str, str], softcapped: bool, pool_kernel: int, spare: bool
) -> str:
    texts = {
        "RingSlot": ring_slot.TEXT,
        "RingFill": ring_fill.TEXT,
        "QueryWindow": query_window.TEXT,
        "SnapKVSelect": snapkv_select.text(vote, softcapped, pool_kernel),
        "RepetitionVotes": repetition.votes_text(softcapped),
        "SelectVoted": repetition.select_text(vote, pool_kernel),
        "SnapStreamGather": snapstream_gather.TEXT,
        "ExtendGather": extend_gather.text(spare),
        "Int8Scale": int8_cache.SCALE_TEXT,
        "Int8Rows": int8_cache.ROWS_TEXT,
    }
    return texts[name]
