"""Rewrites a traced graph into a finished one, by a recipe.

The passes of the graph's kind come first, then the target's. `COMMON` has the graph that each kind
starts from, and its passes. What a kind is called, takes and gives is in `contract/graph_kinds.py`,
by the same names. A cache method brings its own kinds, and passes before and after those that give
a graph its caches. Knows neither files nor manifests.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import onnx
import onnx_graphsurgeon as gs
from onnx.helper import make_tensor_value_info
from onnx_graphsurgeon.logger import G_LOGGER

from snapexport.graphs.compression import compress_graph
from snapexport.graphs.markers import CACHE_DOMAIN, TRACE_DOMAIN
from snapexport.graphs.method import GraphSurgery, Recipe, Size, surgeries, voting
from snapexport.graphs.passes.base import Pass, SurgeryError, called_functions
from snapexport.graphs.passes.decode import DecodeCache, DecodeQueries
from snapexport.graphs.passes.latents import BatchParallel, Latents
from snapexport.graphs.passes.prefill import PrefillCache, SingleShot
from snapexport.graphs.targets import MODEL_PASSES, TARGET_PASSES

IR_VERSION = 12
"""The version that opset 24 needs. The ONNX Runtime that users have reads no newer one."""

G_LOGGER.severity = G_LOGGER.ERROR  # the default warns of every bf16 tensor


def _prefill(recipe: Recipe, size: Size) -> Sequence[Pass]:
    if recipe.geometry.is_single_shot(size.tokens):
        return (SingleShot(recipe.geometry, recipe.options, partial(voting, recipe)),)
    options = recipe.options.of_prompt_cache()
    return (PrefillCache(recipe.geometry.slots, size.capacity, options),)


def decode_caches(recipe: Recipe, size: Size) -> Sequence[Pass]:
    """The passes that give decode its caches."""
    own = (method.places for method in surgeries(recipe) if method.places)
    passes: list[Pass] = [DecodeCache(recipe.geometry, recipe.options, next(own, None))]
    return [*passes, DecodeQueries()] if recipe.with_queries else passes


def _compress_step(prefill: gs.Graph, recipe: Recipe) -> gs.Graph:
    """Prefill's trace is only read for its shapes."""
    Latents(absorb=True).apply(prefill)
    votes = partial(voting, recipe)
    return compress_graph(prefill, recipe.geometry, recipe.options, votes)


COMMON: Mapping[str, GraphSurgery] = {
    "prefill": GraphSurgery(_prefill),
    "decode": GraphSurgery(decode_caches),
    "compress": GraphSurgery(lambda recipe, size: (), _compress_step, is_traced=False),
}


def surgery_of(kind: str, recipe: Recipe) -> GraphSurgery:
    """How a kind of graph is made."""
    own = (method.kinds[kind] for method in surgeries(recipe) if kind in method.kinds)
    return COMMON.get(kind) or next(own)


def passes(kind: str, recipe: Recipe, size: Size) -> list[Pass]:
    """The passes of a kind, in order; the target's follow."""
    surgery, methods = surgery_of(kind, recipe), surgeries(recipe)
    caches = surgery.caches(recipe, size)
    if not surgery.is_traced:
        return [*caches]
    shared = kind == "decode" and recipe.options.data_parallel_attention
    found: list[Pass] = [BatchParallel()] if shared else []
    found.append(Latents(absorb=surgery.absorbs))
    for method in methods:
        found += method.before_caches(kind, recipe, size)
    found += caches
    for method in methods:
        found += method.after_caches(kind, recipe, size)
    return found


def finish(
    kind: str, traced: onnx.ModelProto, recipe: Recipe, capacity: int | None = None
) -> onnx.ModelProto:
    """The finished graph of a kind, of the trace that it is made from.

    capacity: positions of a full-length cache; None: L_max.
    """
    imported = gs.import_onnx(traced)
    size = Size(imported.inputs[0].shape[1], capacity or recipe.geometry.L_max)
    graph = surgery_of(kind, recipe).start(imported, recipe)
    for graph_pass in (*passes(kind, recipe, size), *TARGET_PASSES[recipe.target]):
        graph_pass.apply(graph)
    graph.cleanup(remove_unused_graph_inputs=False).toposort()
    model: onnx.ModelProto = gs.export_onnx(graph, opset_imports=_opsets(graph))
    model.ir_version = IR_VERSION
    model.producer_name = "snapexport"
    model.functions.extend(function.proto() for function in called_functions(graph))
    if recipe.options.share_weights:
        _share_weights(model)
    for change in MODEL_PASSES[recipe.target]:
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


def _share_weights(model: onnx.ModelProto) -> None:
    """Replace each weight with two dimensions or more by an input of its name and shape.

    A process that runs several graphs binds one copy. Vectors (norms and biases) stay in the graph,
    where a compiler can merge them into other operators.
    """
    graph, kept = model.graph, []
    for weight in graph.initializer:
        if weight.data_location == onnx.TensorProto.EXTERNAL and len(weight.dims) > 1:
            shared = make_tensor_value_info(weight.name, weight.data_type, list(weight.dims))
            graph.input.append(shared)
        else:
            kept.append(weight)
    del graph.initializer[:]
    graph.initializer.extend(kept)
