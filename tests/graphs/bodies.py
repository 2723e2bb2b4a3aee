"""The functions by name, for the choices that a test makes."""

from collections.abc import Mapping

import onnx

from snapexport.contract.vote import DEFAULT_POOL_KERNEL
from snapexport.graphs.functions import EXPERTS
from snapexport.graphs.functions.experts import experts
from snapexport.graphs.functions.extend_gather import extend_gather
from snapexport.graphs.functions.int8_cache import INT8_ROWS, INT8_SCALE
from snapexport.graphs.functions.query_window import QUERY_WINDOW
from snapexport.graphs.functions.repetition import repetition_votes, select_voted
from snapexport.graphs.functions.ring_fill import RING_FILL
from snapexport.graphs.functions.ring_slot import RING_SLOT
from snapexport.graphs.functions.snapkv_select import snapkv_select
from snapexport.graphs.functions.snapstream_gather import SNAPSTREAM_GATHER
from snapexport.graphs.functions.vote import DEFAULTS


def function(
    name: str,
    vote: Mapping[str, str] = DEFAULTS,
    pool_kernel: int = DEFAULT_POOL_KERNEL,
    *,
    softcapped: bool = False,
    biased: bool = False,
) -> onnx.FunctionProto:
    """The function `name`. vote: an option of each stage."""
    found = [
        *(RING_SLOT, RING_FILL, QUERY_WINDOW, SNAPSTREAM_GATHER, INT8_SCALE, INT8_ROWS),
        snapkv_select(vote, pool_kernel, softcapped),
        select_voted(vote, pool_kernel),
        repetition_votes(softcapped),
        extend_gather(spare=False),
        *(experts(form, biased) for form in EXPERTS),
    ]
    return {one.name: one for one in found}[name].proto()
