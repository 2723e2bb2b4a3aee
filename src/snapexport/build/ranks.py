"""Places the weights and writes the graphs of every rank of a build.

All ranks have the same graphs, to the byte: their weights have the same names, types and shapes,
and lie at the same places of files of the same names, each in the rank's own folder.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx

from snapexport.build.graph_files import write_graph
from snapexport.build.progress import Progress
from snapexport.contract.manifest import RANK, WEIGHTS, GraphEntry, GraphName
from snapexport.contract.targets import Target, capabilities
from snapexport.exporter import ranks, weights
from snapexport.exporter.checkpoint import Checkpoint
from snapexport.files.dtypes import DType
from snapexport.graphs.segments import segments


def place_ranks(
    checkpoint: Checkpoint,
    sources: Sequence[Mapping[str, str]],
    count: int,
    dtype: DType,
    directory: Path,
    progress: Progress,
    in_fp32: set[str],
) -> weights.PlacedWeights:
    """Write every rank's weights. The tensors are the first rank's, which stand for all.

    sources: {weight: tensor of the checkpoint} of each trace. in_fp32: weights that are.
    """
    every = {name: source for one in sources for name, source in one.items()}
    placed = [
        weights.place(
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
    return weights.PlacedWeights(placed[0].tensors, hashes)


def _layout(placed: weights.PlacedWeights) -> dict[str, object]:
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
