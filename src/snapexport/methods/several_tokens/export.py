"""Traces decode of several tokens of each batch slot."""

from collections.abc import Mapping

import onnx_ir as ir

from snapexport.exporter import trace
from snapexport.exporter.method import MethodExport, TracedModel
from snapexport.methods.several_tokens.spec import GRAPH


class SeveralTokensExport(MethodExport):
    """One trace more."""

    title = "decode of several tokens"

    def traces(self, model: TracedModel) -> Mapping[str, ir.Model]:
        tokens = model.geometry.steps.tokens
        states, ranks = model.hidden_states, model.ranks
        return {GRAPH: trace.trace_decode(model.decoder, model.dtype, states, tokens, ranks)}


EXPORT = SeveralTokensExport()
