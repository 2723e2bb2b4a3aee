"""Makes every graph of a build by surgery, writes it, and describes it for the manifest."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import onnx

from snapexport.contract.build_directory import Build
from snapexport.contract.graph_kind import GraphKind
from snapexport.contract.graph_kinds import GraphOf, graph_of, kinds_of
from snapexport.contract.manifest import GraphEntry, GraphName, TensorSpec, TraceName
from snapexport.errors import UserError
from snapexport.files.whole import sha256_of
from snapexport.graphs.method import Recipe
from snapexport.graphs.surgery import finish


@dataclass(frozen=True)
class Traces:
    """The traces, from which surgery makes the graphs of every policy and target.

    models: by the name of the trace, NAME.N for fewer batch slots than all, and NAME.cM for chunks
    of M tokens.
    """

    models: Mapping[str, onnx.ModelProto]
    prefill_chunk: int

    def write(self, directory: Path) -> dict[TraceName, GraphEntry]:
        """Write the traces that other caches are made from beside the graphs."""
        names: tuple[TraceName, ...] = get_args(TraceName)
        return {name: write_graph(f"{name}.trace", self.models[name], directory) for name in names}

    @classmethod
    def of(cls, build: Build) -> "Traces":
        """The traces of a finished build. Raises UserError if it has none."""
        if not build.manifest.traces:
            raise UserError(
                f"{build.directory} has no baseline graphs", "build it again with --baseline"
            )
        models: dict[str, onnx.ModelProto] = {
            name: onnx.load(build.trace(name), load_external_data=False)
            for name in build.manifest.traces
        }
        return cls(models, build.manifest.prefill_chunk)

    def of_kind(self, kind: GraphKind) -> dict[GraphOf, onnx.ModelProto]:
        """The traces of a kind's graphs."""
        traced = {graph_of(name): model for name, model in self.models.items()}
        return {
            replace(graph, kind=kind): model
            for graph, model in traced.items()
            if graph.kind.name == kind.trace
            and (not graph.size or kind.sized_by == "batch")
            and (not graph.tokens or kind.shortens)
        }


def finished_graphs(
    traces: Traces,
    recipe: Recipe,
    *,
    prefill_capacities: Sequence[int] = (),
    baseline: bool = False,
) -> dict[GraphName, onnx.ModelProto]:
    """Every graph of the build, finished.

    prefill_capacities: positions of further prefill graphs' caches.
    """
    kinds = kinds_of(recipe.geometry, recipe.options, traces.prefill_chunk).values()
    graphs = {
        graph.name: _finish(graph, traced, recipe)
        for graph, traced in _graphs(traces, kinds, prefill_capacities)
    }
    if baseline:
        again, full = [kind for kind in kinds if kind.has_baseline], recipe.of_full_cache()
        graphs |= {
            replace(graph, is_baseline=True).name: _finish(graph, traced, full)
            for graph, traced in _graphs(traces, again, prefill_capacities)
            if not graph.tokens
        }
    return graphs


def _graphs(
    traces: Traces, kinds: Iterable[GraphKind], capacities: Sequence[int]
) -> Iterator[tuple[GraphOf, onnx.ModelProto]]:
    """Each graph and its trace."""
    for kind in kinds:
        for graph, traced in traces.of_kind(kind).items():
            yield graph, traced
            for capacity in capacities if kind.sized_by == "capacity" else ():
                yield replace(graph, size=capacity), traced


def _finish(graph: GraphOf, traced: onnx.ModelProto, recipe: Recipe) -> onnx.ModelProto:
    capacity = graph.size if graph.kind.sized_by == "capacity" else 0
    return finish(graph.kind.name, traced, recipe, capacity or None)


def write_graph(name: str, model: onnx.ModelProto, directory: Path) -> GraphEntry:
    """Write one graph into the build `directory`. Returns its entry in the manifest."""
    path = directory / f"{name}.onnx"
    path.write_bytes(model.SerializeToString(deterministic=True))
    return GraphEntry(
        file=path.name,
        sha256=sha256_of(path),
        inputs=[_tensor_spec(value) for value in model.graph.input],
        outputs=[_tensor_spec(value) for value in model.graph.output],
    )


def _tensor_spec(value: onnx.ValueInfoProto) -> TensorSpec:
    tensor = value.type.tensor_type
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).name
    shape = [dim.dim_value for dim in tensor.shape.dim]
    return TensorSpec(name=value.name, dtype=dtype, shape=shape)
