"""Runs what is around a decoder's layers: the embedding, the last norm and the head."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray

from snapexport.builder.selfcheck.sample import Sample
from snapexport.contract import names
from snapexport.contract.manifest import WEIGHTS
from snapexport.errors import needs_extra
from snapexport.exporter import trace
from snapexport.exporter.read.checkpoint import Checkpoint
from snapexport.exporter.trace import link, with_batch
from snapexport.exporter.trace.link import Traced
from snapexport.exporter.weights.place import place


def without_layers(
    sample: Sample, checkpoint: Checkpoint, tokens: Sequence[int], directory: Path
) -> NDArray[np.float32]:
    """Logits [T,V] of a sample that has no layer, each token for itself."""
    with needs_extra("cpu"):
        import onnxruntime

    decoder = replace(sample.decoder, layers_read_their_own=True)  # none stands for the others
    traced = Traced.of(trace.trace_decode(decoder, torch.float32), decoder)
    placed = place(
        replace(checkpoint, tensors=sample.tensors),
        traced.sources.values(),
        "fp32",
        directory / WEIGHTS,
        lambda _: None,
    )
    model = with_batch(traced.model, len(tokens))
    link.link(model, traced.sources, placed.tensors)
    path = directory / "bare.onnx"
    ir.save(model, path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    given = {
        names.INPUT_IDS: np.array(tokens, np.int64)[:, None],
        names.POSITION_IDS: np.arange(len(tokens))[:, None],
    }
    wanted = {one.name for one in session.get_inputs()}
    (logits,) = session.run(None, {n: one for n, one in given.items() if n in wanted})
    found: NDArray[np.float32] = logits
    return found
