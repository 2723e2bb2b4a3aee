"""The functions by name, for the choices that a test makes, and graphs that ONNX Runtime runs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import onnx_graphsurgeon as gs
import onnxruntime as ort
from numpy.typing import NDArray
from onnx.helper import make_opsetid

from snapexport.contract.vote import DEFAULT_POOL_KERNEL
from snapexport.graphs.functions import EXPERTS
from snapexport.graphs.functions.experts import Experts, experts
from snapexport.graphs.functions.rings import RING_FILL, RING_SLOT, SNAPSTREAM_GATHER
from snapexport.graphs.functions.vote import DEFAULTS, QUERY_WINDOW, select_voted, snapkv_select
from snapexport.graphs.passes.base import Pass, called_functions
from snapexport.graphs.surgery import IR_VERSION
from snapexport.methods.calibrated.surgery import calibrated_votes
from snapexport.methods.extend.surgery import EXTEND_GATHER
from snapexport.methods.int8_cache.surgery import INT8_ROWS, INT8_SCALE
from snapexport.methods.repeat.surgery import repetition_votes
from snapexport.methods.sparse_prefill.surgery import BLOCK_SELECT

Arrays = dict[str, NDArray[Any]]
PLAIN = Experts()


def function(
    name: str,
    vote: Mapping[str, str] = DEFAULTS,
    pool_kernel: int = DEFAULT_POOL_KERNEL,
    *,
    softcapped: bool = False,
    of: Experts = PLAIN,
) -> onnx.FunctionProto:
    """The function `name`. vote: an option of each stage."""
    found = [
        *(RING_SLOT, RING_FILL, QUERY_WINDOW, SNAPSTREAM_GATHER, INT8_SCALE, INT8_ROWS),
        BLOCK_SELECT,
        snapkv_select(vote, pool_kernel, softcapped),
        select_voted(vote, pool_kernel),
        repetition_votes(softcapped),
        calibrated_votes(interleaved=False),
        EXTEND_GATHER,
        *(experts(form, of) for form in EXPERTS),
    ]
    return {one.name: one for one in found}[name].proto()


def calling(proto: onnx.FunctionProto, feeds: Arrays, **attributes: Any) -> onnx.ModelProto:
    """A model that is one call of the function, with the feeds in their order."""
    helper = onnx.helper
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(one.dtype), one.shape)
        for name, one in feeds.items()
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in proto.output]
    call = helper.make_node(
        proto.name, list(feeds), list(proto.output), domain="snapexport", **attributes
    )
    graph = helper.make_graph([call], "one", inputs, outputs)
    opsets = [make_opsetid("", 24), make_opsetid("snapexport", 1)]
    return helper.make_model(graph, functions=[proto], opset_imports=opsets, ir_version=IR_VERSION)


def exported(graph: gs.Graph) -> onnx.ModelProto:
    """The graph in order, with the operators of ONNX and of ONNX Runtime, and our functions."""
    functions = called_functions(graph)
    graph.cleanup(remove_unused_graph_inputs=False).toposort()
    opsets = [make_opsetid(*one) for one in (("", 24), ("com.microsoft", 1), ("snapexport", 1))]
    model: onnx.ModelProto = gs.export_onnx(graph, opset_imports=opsets)
    model.functions.extend(function.proto() for function in functions)
    model.ir_version = IR_VERSION
    return model


def rewritten(graph: gs.Graph, change: Pass) -> onnx.ModelProto:
    """The graph after one pass, as `exported` has it."""
    change.apply(graph)
    return exported(graph)


def run(model: onnx.ModelProto | Path, feeds: Arrays) -> Arrays:
    """Outputs by name. model: a path where weights lie in files beside it."""
    given = model if isinstance(model, Path) else model.SerializeToString()
    session = ort.InferenceSession(given, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))
