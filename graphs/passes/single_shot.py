"""Single-shot prefill: takes the whole padded prompt at once and compresses layer by layer.

This is SnapStream's layout. No full-length cache is an input or output, and only one layer's is in
memory at a time.
"""

from dataclasses import dataclass

import onnx_graphsurgeon as gs

from snapexport.contract import names
from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.graph_options import GraphOptions
from snapexport.graphs.compression import PromptStates, Scores, compress_layer, sharing
from snapexport.graphs.markers import ATTENTION, CACHE_DOMAIN, PROMPT_ATTENTION, TRACE_DOMAIN
from snapexport.graphs.passes.base import cut, graph_input, int64s, markers, node
from snapexport.graphs.passes.cache import attention_attributes, cache_like
from snapexport.graphs.passes.chunks import attend_to_prompt_in_chunks, chunk_of
from snapexport.graphs.passes.prefill_cache import query_window
from snapexport.graphs.passes.storage import storage_of


@dataclass(frozen=True)
class SingleShot:
    """Makes a whole prompt's prefill of a chunk's trace: no past, first position 0."""

    geometry: CacheGeometry
    options: GraphOptions

    def apply(self, graph: gs.Graph) -> None:
        prompt_length, storage = self._rename_lengths(graph), storage_of(self.options.cache_dtype)
        held: dict[int, tuple[gs.Tensor, gs.Tensor]] = {}
        for layer, marker in markers(graph, TRACE_DOMAIN, ATTENTION):
            scores, source = Scores.of(marker), self.geometry.slots.source(layer)
            attributes = attention_attributes(marker, self.geometry.L_max)
            chunk = chunk_of(marker, self.geometry.L_max)
            (query, *own), outputs = cut(graph, marker)
            key, value = held.setdefault(source, (own[0], own[1]))
            inputs = [query, key, value, *own[2:]]
            if chunk:
                attend_to_prompt_in_chunks(graph, inputs, outputs[0], chunk, attributes)
            else:
                node(graph, PROMPT_ATTENTION, inputs, outputs, domain=CACHE_DOMAIN, **attributes)
            attention = graph.nodes[-1]
            if source != layer:
                continue
            if self.geometry.compresses:
                window = query_window(
                    graph, layer, attention, prompt_length, self.geometry.vote.L_obs
                )
                latent = bool(attributes["latent"])
                ranks = sharing(graph, latent=latent)
                states = PromptStates(window, key, value, prompt_length, latent, ranks)
                compress_layer(graph, self.geometry, layer, scores, states, storage)
            else:
                self._output_full(graph, layer, key, value)

    def _rename_lengths(self, graph: gs.Graph) -> gs.Variable:
        """Make past_length the constant 0, and rename chunk_length to prompt_length."""
        past_length = graph_input(graph, names.PAST_LENGTH)
        zero = int64s(graph, 0)
        for reader in list(past_length.outputs):
            reader.inputs = [zero if tensor is past_length else tensor for tensor in reader.inputs]
        graph.inputs.remove(past_length)
        prompt_length = graph_input(graph, names.CHUNK_LENGTH)
        prompt_length.name = names.PROMPT_LENGTH
        return prompt_length

    def _output_full(self, graph: gs.Graph, layer: int, key: gs.Tensor, value: gs.Tensor) -> None:
        presents = (names.present_key(layer), names.present_value(layer))
        for states, name in zip((key, value), presents, strict=True):
            present = cache_like(states, name, self.geometry.L_max)
            node(graph, "Identity", [states], [present])
            graph.outputs.append(present)
