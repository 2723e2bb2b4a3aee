"""Rewrites a traced graph into a finished one, by a recipe.

The passes of the graph's kind come first, then the target's. Knows neither files nor manifests.
"""

import onnx
import onnx_graphsurgeon as gs
from onnx_graphsurgeon.logger import G_LOGGER

from snapexport.graphs.kinds import passes, surgery_of
from snapexport.graphs.markers import CACHE_DOMAIN, TRACE_DOMAIN
from snapexport.graphs.passes.base import SurgeryError, called_functions
from snapexport.graphs.recipe import Recipe, Size
from snapexport.graphs.shared_weights import share_weights
from snapexport.graphs.targets import MODEL_PASSES, TARGET_PASSES

IR_VERSION = 12
"""The version that opset 24 needs. The ONNX Runtime that users have reads no newer one."""

G_LOGGER.severity = G_LOGGER.ERROR  # the default warns of every bf16 tensor


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
        share_weights(model)
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
