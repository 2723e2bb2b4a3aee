"""Makes every graph of a build by surgery, writes it, and describes it for the manifest."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import onnx

from snapexport.contract.build_directory import Build
from snapexport.contract.graph_kinds import BASELINE, GraphKind, kinds_of
from snapexport.contract.manifest import GraphEntry, GraphName, TensorSpec, TraceName
from snapexport.errors import UserError
from snapexport.files.whole import sha256_of
from snapexport.graphs.recipe import Recipe
from snapexport.graphs.surgery import finish


@dataclass(frozen=True)
class Traces:
    """The traces, from which surgery makes the graphs of every policy and target.

    models: by the name of the trace, and NAME.N for fewer batch slots than all.
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

    def of_kind(self, kind: GraphKind) -> dict[str, onnx.ModelProto]:
        """The traces of a kind's graphs, by the graph's name."""
        stem = kind.trace
        found = {stem: self.models[stem]}
        if kind.sized_by == "batch":
            found |= {n: one for n, one in self.models.items() if n.startswith(f"{stem}.")}
        return {n.replace(stem, kind.name, 1): one for n, one in found.items()}


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
    graphs = dict(_finished(traces, kinds, recipe, prefill_capacities))
    if baseline:
        again = [kind for kind in kinds if kind.has_baseline]
        full = _finished(traces, again, recipe.of_full_cache(), prefill_capacities)
        graphs |= {f"{BASELINE}{name}": model for name, model in full}
    return graphs


def _finished(
    traces: Traces, kinds: Iterable[GraphKind], recipe: Recipe, capacities: Sequence[int]
) -> Iterator[tuple[GraphName, onnx.ModelProto]]:
    for kind in kinds:
        for name, traced in traces.of_kind(kind).items():
            yield name, finish(kind.name, traced, recipe)
        for capacity in capacities if kind.sized_by == "capacity" else ():
            model = finish(kind.name, traces.models[kind.trace], recipe, capacity)
            yield f"{kind.name}.{capacity}", model


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
