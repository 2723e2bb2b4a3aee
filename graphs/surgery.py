"""Rewrites a traced graph into a finished one, for a cache geometry, a target and graph options.

Policy passes come first, then the target's. Knows neither files nor manifests.
"""

from collections.abc import Sequence

import onnx
import onnx_graphsurgeon as gs
from onnx_graphsurgeon.logger import G_LOGGER

from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.graph_options import GraphOptions
from snapexport.contract.names import DOMAIN, HIDDEN_STATES
from snapexport.contract.targets import Target
from snapexport.graphs.compress import compress_graph, vote_graph
from snapexport.graphs.functions import EXPERTS, NAMES, function
from snapexport.graphs.markers import CACHE_DOMAIN, TRACE_DOMAIN
from snapexport.graphs.passes.attention_groups import AttentionGroups
from snapexport.graphs.passes.base import Pass, SurgeryError
from snapexport.graphs.passes.batch_parallel import BatchParallel
from snapexport.graphs.passes.decode_cache import DecodeCache
from snapexport.graphs.passes.decode_queries import DecodeQueries
from snapexport.graphs.passes.draft_ring import DraftRing, FilledRing
from snapexport.graphs.passes.extend_cache import ExtendCache
from snapexport.graphs.passes.head_groups import HeadGroups
from snapexport.graphs.passes.latents import Latents
from snapexport.graphs.passes.prefill_cache import PrefillCache, QueryWindows
from snapexport.graphs.passes.single_shot import SingleShot
from snapexport.graphs.passes.top_tokens import TopTokens
from snapexport.graphs.shared_weights import share_weights
from snapexport.graphs.targets import MODEL_PASSES, TARGET_PASSES

IR_VERSION = 12
"""The version that opset 24 needs. The ONNX Runtime that users have reads no newer one."""

DEFAULTS = GraphOptions()

_BIASED = 7
"""Inputs of a function of experts with biases."""

G_LOGGER.severity = G_LOGGER.ERROR  # the default warns of every bf16 tensor


def prefill(
    traced: onnx.ModelProto,
    geometry: CacheGeometry,
    target: Target,
    options: GraphOptions = DEFAULTS,
    capacity: int | None = None,
) -> onnx.ModelProto:
    """The graph of one prompt chunk; single shot if `traced` has a chunk of L_max tokens.

    capacity: positions of its cache; None: L_max.
    """
    graph = _imported(traced, options)
    chunk = graph.inputs[0].shape[1]
    passes: list[Pass] = [Latents(), PrefillCache(capacity or geometry.L_max)]
    if geometry.is_single_shot(chunk):
        passes = [Latents(), SingleShot(geometry, options)]
    elif geometry.compresses:
        passes.append(QueryWindows(geometry.L_obs))
    if options.attention_groups > 1 and not geometry.is_single_shot(chunk):
        passes.append(AttentionGroups(options.attention_groups))
    return _finish(graph, geometry, passes + _sampling(options), target, options)


def compress(
    traced: onnx.ModelProto,
    geometry: CacheGeometry,
    target: Target,
    options: GraphOptions = DEFAULTS,
) -> onnx.ModelProto:
    """The graph of the compress step. `traced` is prefill's trace, read for its shapes."""
    prefill = gs.import_onnx(traced)
    Latents(absorb=True).apply(prefill)
    graph = compress_graph(prefill, geometry, options)
    return _finish(graph, geometry, [], target, options)


def vote(
    traced: onnx.ModelProto,
    geometry: CacheGeometry,
    target: Target,
    options: GraphOptions = DEFAULTS,
) -> onnx.ModelProto:
    """The graph of a repeated chunk's votes. `traced` is prefill's trace, read for its shapes."""
    prefill = gs.import_onnx(traced)
    Latents(absorb=True).apply(prefill)
    return _finish(vote_graph(prefill, geometry), geometry, [], target, options)


def extend(
    traced: onnx.ModelProto,
    geometry: CacheGeometry,
    target: Target,
    options: GraphOptions = DEFAULTS,
) -> onnx.ModelProto:
    """The graph of one more chunk onto a compressed cache. `traced` is prefill's trace."""
    passes: list[Pass] = [Latents(), *_split(geometry), ExtendCache(geometry, options)]
    if options.attention_groups > 1:
        passes.append(AttentionGroups(options.attention_groups))
    graph = _imported(traced, options)
    graph.name = "extend"
    return _finish(graph, geometry, passes + _sampling(options), target, options)


def decode(
    traced: onnx.ModelProto,
    geometry: CacheGeometry,
    target: Target,
    options: GraphOptions = DEFAULTS,
    *,
    with_queries: bool = False,
) -> onnx.ModelProto:
    """The graph of a decode step, of as many tokens as `traced` has.

    with_queries: adds output query.{l} [B,H,1,D].
    """
    passes: list[Pass] = [Latents(), *_split(geometry), DecodeCache(geometry, options)]
    if options.data_parallel_attention:
        passes.insert(0, BatchParallel())
    if with_queries:
        passes.append(DecodeQueries())
    graph = _imported(traced, options)
    return _finish(graph, geometry, passes + _sampling(options), target, options)


def mtp(
    traced: onnx.ModelProto,
    geometry: CacheGeometry,
    target: Target,
    options: GraphOptions = DEFAULTS,
) -> onnx.ModelProto:
    """The graph of one step of multi-token prediction for each batch slot."""
    passes: list[Pass] = [Latents(), DraftRing(geometry.draft_ring, options)]
    graph = gs.import_onnx(traced)
    return _finish(graph, geometry, passes + _sampling(options), target, options)


def mtp_prefill(
    traced: onnx.ModelProto,
    geometry: CacheGeometry,
    target: Target,
    options: GraphOptions = DEFAULTS,
) -> onnx.ModelProto:
    """The graph that fills the ring of multi-token prediction from a prompt's chunk."""
    passes: list[Pass] = [Latents(absorb=True), FilledRing(geometry.draft_ring, options)]
    return _finish(gs.import_onnx(traced), geometry, passes, target, options)


def _imported(traced: onnx.ModelProto, options: GraphOptions) -> gs.Graph:
    """A trace, without the hidden states where no graph takes them: a build may derive others."""
    graph = gs.import_onnx(traced)
    if not options.mtp:
        graph.outputs = [one for one in graph.outputs if one.name != HIDDEN_STATES]
    return graph


def _split(geometry: CacheGeometry) -> list[Pass]:
    return [HeadGroups(geometry)] if geometry.head_groups else []


def _sampling(options: GraphOptions) -> list[Pass]:
    return [TopTokens(options.top_tokens)] if options.top_tokens else []


def _finish(
    graph: gs.Graph,
    geometry: CacheGeometry,
    passes: Sequence[Pass],
    target: Target,
    options: GraphOptions,
) -> onnx.ModelProto:
    for graph_pass in (*passes, *TARGET_PASSES[target]):
        graph_pass.apply(graph)
    graph.cleanup(remove_unused_graph_inputs=False).toposort()
    called = dict.fromkeys(node.op for node in graph.nodes if node.domain == DOMAIN)
    model: onnx.ModelProto = gs.export_onnx(graph, opset_imports=_opsets(graph))
    model.ir_version = IR_VERSION
    model.producer_name = "snapexport"
    softcapped = any(node.attrs.get("softcap") for node in graph.nodes if node.domain == DOMAIN)
    biased = any(node.op in EXPERTS and len(node.inputs) == _BIASED for node in graph.nodes)
    spare = geometry.tokens_per_step > 1
    model.functions.extend(
        function(name, geometry.vote_options, softcapped, geometry.pool_kernel, biased, spare)
        for name in NAMES
        if name in called
    )
    if options.share_weights:
        share_weights(model)
    for change in MODEL_PASSES[target]:
        change(model, options)
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
