"""Places the weights and writes the graphs of every rank of a build.

All ranks have the same graphs, to the byte: their weights have the same names, types and shapes,
and are at the same places of files of the same names, each in the rank's own folder.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import onnx
import onnx_ir as ir

from snapexport.builder.graph_files import write_graph
from snapexport.builder.progress import Progress
from snapexport.contract.manifest import RANK, WEIGHTS, GraphEntry, GraphName
from snapexport.contract.targets import Target, capabilities
from snapexport.exporter.model import ranks
from snapexport.exporter.read.checkpoint import Checkpoint
from snapexport.exporter.trace import link
from snapexport.exporter.trace.link import Traced
from snapexport.exporter.weights.place import PlacedWeights, place
from snapexport.files.dtypes import DType
from snapexport.graphs.segments import segments


def place_ranks(
    checkpoint: Checkpoint,
    traced: Mapping[GraphName, Traced],
    count: int,
    dtype: DType,
    directory: Path,
    progress: Progress,
) -> tuple[PlacedWeights, dict[GraphName, Traced]]:
    """Write every rank's weights. The tensors are the first rank's: all ranks have the same.

    Also returns the traces by a rank's names of weights: two may be cut of one tensor.
    """
    every = {name: source for trace in traced.values() for name, source in trace.sources.items()}
    own = {
        name: replace(trace, sources={weight: weight for weight in trace.sources})
        for name, trace in traced.items()
    }
    in_fp32 = link.tensors_of(ir.DataType.FLOAT, own.values())
    placed = [
        place(
            ranks.of_rank(checkpoint, every, rank, count),
            every,
            dtype,
            directory / f"{RANK}{rank}" / WEIGHTS,
            progress.written,
            in_fp32=in_fp32,
            aligned=False,
        )
        for rank in range(count)
    ]
    layouts = [_layout(one) for one in placed]
    assert all(layout == layouts[0] for layout in layouts), "ranks have different weights"
    hashes = {file: digest for one in placed for file, digest in one.hashes.items()}
    return PlacedWeights(placed[0].tensors, hashes), own


def _layout(placed: PlacedWeights) -> dict[str, object]:
    return {
        name: (span.file.name, span.offset, span.nbytes, span.dtype, span.shape)
        for name, span in placed.tensors.items()
    }


def write_ranks(
    graphs: Mapping[GraphName, onnx.ModelProto], target: Target, count: int, directory: Path
) -> tuple[dict[GraphName, GraphEntry], dict[GraphName, list[GraphEntry]]]:
    """Write each graph into every rank's folder, and its segments where a target needs them."""
    entries: dict[GraphName, GraphEntry] = {}
    cut: dict[GraphName, list[GraphEntry]] = {}
    folders = [directory / f"{RANK}{rank}" for rank in range(count)]
    for name, model in graphs.items():
        entries[name] = _write(name, model, folders)
        parts = [] if capabilities(target).compiled else segments(model)
        if parts:
            cut[name] = [_write(f"{name}-{i}", part, folders) for i, part in enumerate(parts)]
    return entries, cut


def _write(name: str, model: onnx.ModelProto, folders: Sequence[Path]) -> GraphEntry:
    first, *_ = [write_graph(name, model, folder) for folder in folders]
    return first
