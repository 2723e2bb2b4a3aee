"""Defines the traces of a cache method: the base of every `methods/*/export.py`."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import onnx_ir as ir
import torch

from snapexport.contract.geometry import CacheGeometry
from snapexport.exporter.model.decoder import Decoder
from snapexport.exporter.read.checkpoint import Checkpoint


@dataclass(frozen=True)
class TracedModel:
    """A model to trace. chunk: tokens of a prefill chunk. hidden_states: traces output them."""

    decoder: Decoder
    dtype: torch.dtype
    geometry: CacheGeometry
    chunk: int
    hidden_states: bool
    ranks: int


class MethodExport:
    """Traces of a method's own graphs. title: for progress."""

    title = ""

    def require(self, checkpoint: Checkpoint, decoder: Decoder) -> None:
        """Raise UserError for a checkpoint that lacks what the traces need."""

    def tensors(self, checkpoint: Checkpoint, decoder: Decoder) -> Collection[str]:
        """Tensors of the checkpoint that only its traces read. Raises UserError without them."""
        return ()

    def traces(self, model: TracedModel) -> Mapping[str, ir.Model]:
        """The traces, by the names of their kinds of graphs."""
        raise NotImplementedError
