"""The pipeline: a traced graph, a cache geometry and a target in; a finished graph out."""

from collections.abc import Sequence

import onnx
import onnx_graphsurgeon as gs
from onnx_graphsurgeon.logger import G_LOGGER

from snapexport.contract.cache_form import PLAIN, CacheForm
from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.manifest import Target
from snapexport.contract.names import DOMAIN
from snapexport.graphs.compress import compress_graph
from snapexport.graphs.functions import NAMES, function
from snapexport.graphs.markers import CACHE_DOMAIN, TRACE_DOMAIN
from snapexport.graphs.passes.base import Pass, SurgeryError
from snapexport.graphs.passes.decode_cache import DecodeCache
from snapexport.graphs.passes.decode_queries import DecodeQueries
from snapexport.graphs.passes.prefill_cache import PrefillCache
from snapexport.graphs.passes.query_windows import QueryWindows
from snapexport.graphs.passes.single_shot import SingleShot
from snapexport.graphs.passes.top_tokens import TopTokens
from snapexport.graphs.targets import BODY_PASSES, TARGET_PASSES

IR_VERSION = 12
"""What opset 24 asks for; newer ones are not read by the ONNX Runtime that users have."""

G_LOGGER.severity = G_LOGGER.ERROR  # it warns of every bf16 tensor that it passes through


def prefill(
    traced: onnx.ModelProto,
    geometry: CacheGeometry,
    target: Target,
    form: CacheForm = PLAIN,
    *,
    top_tokens: int = 0,
) -> onnx.ModelProto:
    """One chunk of a prompt, or (traced at L_max) the whole of it.

    top_tokens: how many of the likeliest tokens are told beside the logits.
    """
    graph = gs.import_onnx(traced)
    chunk = graph.inputs[0].shape[1]
    passes: list[Pass]
    if geometry.is_single_shot(chunk):
        passes = [SingleShot(geometry, form)]
    elif geometry.compresses:
        passes = [PrefillCache(geometry.L_max), QueryWindows(geometry.L_obs)]
    else:
        passes = [PrefillCache(geometry.L_max)]
    if top_tokens:
        passes.append(TopTokens(top_tokens))
    return _finish(graph, geometry, passes, target)


def compress(
    traced: onnx.ModelProto, geometry: CacheGeometry, target: Target, form: CacheForm = PLAIN
) -> onnx.ModelProto:
    """The hand-over after the last chunk. `traced` is the prefill's trace, for its shapes."""
    graph = compress_graph(gs.import_onnx(traced), geometry, form)
    return _finish(graph, geometry, [], target)


def decode(
    traced: onnx.ModelProto,
    geometry: CacheGeometry,
    target: Target,
    form: CacheForm = PLAIN,
    *,
    top_tokens: int = 0,
    with_queries: bool = False,
) -> onnx.ModelProto:
    """One token for every slot. with_queries: query.{l} [B,H,1,D] are outputs too."""
    passes: list[Pass] = [DecodeCache(geometry, form)]
    if with_queries:
        passes.append(DecodeQueries())
    if top_tokens:
        passes.append(TopTokens(top_tokens))
    return _finish(gs.import_onnx(traced), geometry, passes, target)


def _finish(
    graph: gs.Graph, geometry: CacheGeometry, passes: Sequence[Pass], target: Target
) -> onnx.ModelProto:
    for one in (*passes, *TARGET_PASSES[target]):
        one.apply(graph)
    graph.cleanup(remove_unused_graph_inputs=False).toposort()
    called = dict.fromkeys(node.op for node in graph.nodes if node.domain == DOMAIN)
    model: onnx.ModelProto = gs.export_onnx(graph, opset_imports=_opsets(graph))
    model.ir_version = IR_VERSION
    model.producer_name = "snapexport"
    softcapped = any(node.attrs.get("softcap") for node in graph.nodes if node.domain == DOMAIN)
    model.functions.extend(
        function(name, geometry.vote_options, softcapped) for name in NAMES if name in called
    )
    for change in BODY_PASSES[target]:
        change(model)
    _require_finished(model)
    return model


def _opsets(graph: gs.Graph) -> list[onnx.OperatorSetIdProto]:
    versions = {"": graph.opset} | {n.domain: 1 for n in graph.nodes if n.domain}
    return [onnx.helper.make_opsetid(domain, version) for domain, version in versions.items()]


def _require_finished(model: onnx.ModelProto) -> None:
    left = {n.domain for n in model.graph.node} & {TRACE_DOMAIN, CACHE_DOMAIN}
    if left:
        raise SurgeryError(f"markers of {sorted(left)} are left in the graph")
    for value in (*model.graph.input, *model.graph.output):
        if not all(dim.dim_value > 0 for dim in value.type.tensor_type.shape.dim):
            raise SurgeryError(f"{value.name} has no fixed shape")
