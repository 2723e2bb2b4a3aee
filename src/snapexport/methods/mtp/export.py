"""Traces the checkpoint's layer for multi-token prediction: a step, and a chunk of a prompt."""

from collections.abc import Collection, Mapping

import onnx_ir as ir

from snapexport.exporter.method import MethodExport, TracedModel
from snapexport.exporter.model.decoder import Decoder
from snapexport.exporter.read.checkpoint import Checkpoint
from snapexport.methods.mtp import layer, trace
from snapexport.methods.mtp.spec import GRAPH, PREFILL_GRAPH


class MtpExport(MethodExport):
    """Two traces more, of a layer that comes after the model's last."""

    title = "multi-token prediction"

    def require(self, checkpoint: Checkpoint, decoder: Decoder) -> None:
        layer.require_layer(checkpoint, decoder)

    def tensors(self, checkpoint: Checkpoint, decoder: Decoder) -> Collection[str]:
        layer.require_present(checkpoint, decoder)
        return layer.tensors(checkpoint, decoder)

    def traces(self, model: TracedModel) -> Mapping[str, ir.Model]:
        return {
            GRAPH: trace.trace_mtp(model.decoder, model.dtype),
            PREFILL_GRAPH: trace.trace_mtp_prefill(model.decoder, model.dtype, model.chunk),
        }


EXPORT = MtpExport()
