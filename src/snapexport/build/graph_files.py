"""Makes every graph of a build by surgery, writes it, and describes it for the manifest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx

from snapexport.contract.build_directory import Build
from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.graph_options import GraphOptions
from snapexport.contract.manifest import (
    BASELINE,
    MTP,
    MTP_PREFILL,
    VERIFY,
    GraphEntry,
    GraphName,
    TensorSpec,
    TraceName,
)
from snapexport.contract.targets import Target
from snapexport.errors import UserError
from snapexport.files.whole import sha256_of
from snapexport.graphs import surgery


@dataclass(frozen=True)
class Traces:
    """The traces, from which surgery makes the graphs of every policy and target.

    smaller_decodes: {number of batch slots: trace of decode}, for fewer than all. verify: the same
    of several tokens, for all and for fewer, if the build has it. mtp: of a step and of a chunk of
    multi-token prediction, if the build has it.
    """

    prefill: onnx.ModelProto
    decode: onnx.ModelProto
    prefill_chunk: int
    smaller_decodes: Mapping[int, onnx.ModelProto] = field(default_factory=dict)
    verify: Mapping[int, onnx.ModelProto] = field(default_factory=dict)
    mtp: tuple[onnx.ModelProto, onnx.ModelProto] | None = None

    def write(self, directory: Path) -> dict[TraceName, GraphEntry]:
        """Write the traces for all batch slots beside the graphs."""
        return {
            "prefill": write_graph("prefill.trace", self.prefill, directory),
            "decode": write_graph("decode.trace", self.decode, directory),
        }

    @classmethod
    def of(cls, build: Build) -> "Traces":
        """The traces of a finished build. Raises UserError if it has none."""
        if not build.manifest.traces:
            raise UserError(
                f"{build.directory} has no baseline graphs", "build it again with --baseline"
            )
        prefill, decode = (
            onnx.load(build.trace(name), load_external_data=False) for name in ("prefill", "decode")
        )
        return cls(prefill, decode, build.manifest.prefill_chunk)


def finished_graphs(
    traces: Traces,
    geometry: CacheGeometry,
    target: Target,
    options: GraphOptions,
    *,
    prefill_capacities: Sequence[int] = (),
    baseline: bool = False,
    with_queries: bool = False,
) -> dict[GraphName, onnx.ModelProto]:
    """Every graph of the build, finished.

    prefill_capacities: positions of further prefill graphs' caches. with_queries: decode outputs
    its queries.
    """
    choice = (geometry, target, options)
    graphs: dict[GraphName, onnx.ModelProto] = {
        "prefill": surgery.prefill(traces.prefill, *choice),
        "decode": surgery.decode(traces.decode, *choice, with_queries=with_queries),
    }
    for capacity in prefill_capacities:
        graphs[f"prefill.{capacity}"] = surgery.prefill(traces.prefill, *choice, capacity)
    for slots, traced in traces.smaller_decodes.items():
        graphs[f"decode.{slots}"] = surgery.decode(traced, *choice)
    for slots, traced in traces.verify.items():
        name = VERIFY if slots not in traces.smaller_decodes else f"{VERIFY}.{slots}"
        graphs[name] = surgery.decode(traced, *choice)
    if geometry.compresses and not geometry.is_single_shot(traces.prefill_chunk):
        graphs["compress"] = surgery.compress(traces.prefill, *choice)
    if geometry.repeats:
        graphs["vote"] = surgery.vote(traces.prefill, *choice)
    if options.extend:
        graphs["extend"] = surgery.extend(traces.prefill, *choice)
    if traces.mtp:
        step, chunk = traces.mtp
        graphs[MTP] = surgery.mtp(step, *choice)
        graphs[MTP_PREFILL] = surgery.mtp_prefill(chunk, *choice)
    if baseline:
        full = finished_graphs(
            replace(traces, verify={}, mtp=None),
            geometry.as_full(),
            target,
            options.of_full_cache(),
            prefill_capacities=prefill_capacities,
        )
        graphs |= {f"{BASELINE}{name}": model for name, model in full.items()}
    return graphs


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
