"""Bounds the bytes of activations, from the tensors' shapes.

The factors for ONNX Runtime are fitted to measured runs (docs/how-to/plan.md). Those for
a GPU are not measured: only TensorRT's builder knows what its layers take.
"""

from dataclasses import dataclass
from functools import cached_property

from snapexport.builder import BuildOptions
from snapexport.builder.plan.model import PlannedModel
from snapexport.builder.plan.weights import largest_dequantized_bytes
from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.graph_kinds import graph_of
from snapexport.contract.memory import fused_scratch_bytes, scores_bytes, vote_scores_bytes
from snapexport.contract.targets import (
    LARGEST_PLUGIN_HEAD,
    SINK_CHANNELS,
    TargetCapabilities,
    capabilities,
)
from snapexport.files.dtypes import BY_FLAG
from snapexport.methods import table

_FP32 = 4

_ARENA = 2
"""ONNX Runtime allocates tensor by tensor in a graph's first run, and one block in later runs. Its
arena keeps the memory of the first run."""

_COMPOSED_COPIES = 2
"""Copies of scores that are soft-capped, or composed beside a sink: before and after."""


_READ_COPIES = 3
"""Of what a sparse chunk attends to: chosen, joined with the chunk, and written behind by it."""


@dataclass(frozen=True)
class Activations:
    """Bytes of the work of each graph. geometry, chunk: those of `options` for this model."""

    model: PlannedModel
    options: BuildOptions
    geometry: CacheGeometry
    chunk: int

    def prefill(self, outputs: int) -> int:
        """Bytes of a prefill step of a chunk over L_max positions, with its outputs."""
        slots = self.geometry.L_max
        taken = self.layer(self.chunk) * self._arena
        if self._forms_scores:
            copies = _COMPOSED_COPIES if self._is_composed else 1
            taken += copies * self._scores(self.chunk, slots)
        if self.options.graph.prompt_cache_dtype:
            taken += slots * self._position(_FP32)
        taken += self._expanded_latents() + self._chunked() + self._dequantized() + self._sparse()
        if self._is_masked:
            taken += self.chunk * slots  # bool [1,1,C,T], shared by the layers
        if self._target.fused_shapes and not self._single_shot:
            taken += self._fused_scratch()
        if self._single_shot:
            taken += self.compress()
        return taken + outputs

    def compress(self) -> int:
        """Bytes of the compress step of one layer: its vote, and a conversion to fewer bits.

        The vote holds copies of the window's scores [H,W,T] in fp32 and of the keys [Hkv,T,D]. A
        plugin holds votes [H,T] instead (docs/how-to/tensorrt.md).
        """
        facts, geometry = self.model.facts, self.geometry
        if not geometry.votes:
            return self._rounding() * self._arena
        widest = max(layer.query_dim for layer in facts.layers)
        if self._target.plugins and widest <= LARGEST_PLUGIN_HEAD:
            return self._scores(1, geometry.L_max)
        votes = vote_scores_bytes(facts, geometry, self.options.target, geometry.L_max)
        width = max(layer.kv_heads * layer.query_dim for layer in facts.layers)
        keys = width * geometry.L_max * self._working
        if self.options.graph.prompt_cache_dtype:
            votes += geometry.L_max * self._position(_FP32)
        return (votes + self._target.vote_key_copies * keys + self._rounding()) * self._arena

    def decode(self) -> int:
        """Bytes of a decode step: a row and scores for each token, logits [B,V] or [B,C,V]."""
        tokens = self.options.batch * self.geometry.steps.tokens_per_step
        widest = max(layer.cache_slots for layer in self.geometry.layers)
        rows = self.layer(tokens) + self._scores(tokens, widest)
        logits = 2 * tokens * self.model.facts.vocab_size * _FP32
        return rows * self._arena + logits + self._dequantized()

    def layer(self, rows: int) -> int:
        """Bytes of a layer's tensors, for `rows` tokens, that can be alive at the same time.

        Four of [rows,I] (gate, up and their products), five of [rows,E] (residual, normed), three
        of [rows,H*D] (queries before and after RoPE, attended), four of [rows,Hkv*D].
        """
        model, layers = self.model, self.model.facts.layers
        heads = max((3 * layer.heads + 4 * layer.kv_heads) * layer.widest for layer in layers)
        width = 4 * model.intermediate_size + 5 * model.hidden_size + heads
        return rows * width * self._working

    @cached_property
    def _target(self) -> TargetCapabilities:
        return capabilities(self.options.target)

    @property
    def _single_shot(self) -> bool:
        return self.geometry.is_single_shot(self.chunk)

    @property
    def _is_composed(self) -> bool:
        """No target has a fused kernel for soft-capped scores, sinks in fp32, or two widths."""
        features = self.model.facts.features
        has_two_widths = features["latent"] or features["unequal_widths"]
        return self.model.softcapped or self._has_sinks or has_two_widths

    @property
    def _has_sinks(self) -> bool:
        return any(layer.sinks for layer in self.model.facts.layers)

    @property
    def _forms_scores(self) -> bool:
        """Whether prefill's attention holds a layer's scores at once."""
        target, model = self._target, self.model
        is_fused = (
            self.options.dtype in target.fused_attention
            and self.options.graph.prompt_cache_dtype is None  # converted, and its scores formed
            and (target.fused_whole_prompt or not self._single_shot)
            # The compiled ones have no fused kernel in a model with experts.
            and not (target.fused_shapes and model.facts.num_experts)
            and model.facts.latent is None
            and not model.facts.features["unequal_widths"]
            and not self._is_too_wide
        )
        return model.softcapped or not is_fused

    @property
    def _is_too_wide(self) -> bool:
        """Whether a fused kernel takes no heads as wide as those of some layer."""
        shapes = self._target.fused_shapes
        widest = max(layer.widest for layer in self.model.facts.layers)
        return shapes is not None and widest > shapes.largest_head_dim

    def _chunked(self) -> int:
        """Bytes of the part of a cache that a layer with chunked attention reads, and its scores.

        They are formed in ONNX Runtime, whose fused operator takes no mask.
        """
        sizes = [layer.chunk for layer in self.model.facts.layers if layer.chunk]
        if not sizes:
            return 0
        span = min(self.geometry.L_max, max(sizes) + self.chunk)
        forms_more = not self._forms_scores and not self._target.fused_shapes
        scores = self._scores(self.chunk, span) if forms_more else 0
        return span * self._position(self._working) + scores

    def _sparse(self) -> int:
        """Bytes of a sparse chunk, whose graph is a further one. Not measured."""
        inner = table.inner_chunks(self.options.graph, self.chunk)
        if not inner:
            return 0
        kind, slots = graph_of(inner.graph).kind, self.geometry.L_max
        read = kind.attended(self.options.graph, 0, self.chunk, slots) * self._position(
            self._working
        )
        return (self.layer(self.chunk) + _READ_COPIES * read) * self._arena

    @property
    def _is_masked(self) -> bool:
        """Whether prefill's attention has an explicit mask."""
        reasons = {
            "chunk": not self._single_shot,
            "window": any(self.model.facts.sliding_window),
            "softcap": self.model.softcapped,
            "sink": self._has_sinks,
        }
        return any(reasons[reason] for reason in self._target.masks)

    @property
    def _working(self) -> int:
        """Bytes of an element in work. The CPU provider adds an fp32 copy to each fp16 tensor."""
        item = BY_FLAG[self.options.dtype].bytes
        converts = not self._target.runs_on_gpu and item < _FP32
        return item + _FP32 if converts else item

    @property
    def _arena(self) -> int:
        return 1 if self._target.runs_on_gpu else _ARENA

    def _scores(self, rows: int, slots: int) -> int:
        return scores_bytes(self.model.facts, rows, slots)

    def _position(self, item: int) -> int:
        """Bytes of key and value of one position in one layer: [Hkv,D] each, or the latents."""
        return max(layer.position_values for layer in self.model.facts.layers) * item

    def _expanded_latents(self) -> int:
        """Bytes of the keys and values of all heads, where a chunk expands latents."""
        facts = self.model.facts
        if facts.latent is None or not facts.latent.expands(self.chunk):
            return 0
        width = facts.latent.nope + facts.latent.value
        return facts.layer(0).heads * self.geometry.L_max * width * self._working

    def _fused_scratch(self) -> int:
        """Beside sinks the kernel reads copies with more channels, which are copied once more."""
        slots = self.geometry.L_max
        states = slots * self._position(BY_FLAG[self.options.dtype].bytes)
        if self._has_sinks:
            width = min(layer.query_dim for layer in self.model.facts.layers)
            states = 2 * (states * (width + SINK_CHANNELS) // width)
        return fused_scratch_bytes(states, self.chunk, slots)

    def _rounding(self) -> int:
        """Bytes of the compressed keys and values in fp32, 2 x [Hkv,S,D].

        int8: twice that while they are rounded; and for their scale a copy of the prompt's keys or
        values, [Hkv,T,D], and its squares. Not measured.
        """
        stored = self.options.stored_cache_dtype
        if stored == self.options.dtype:
            return 0
        position = self._position(_FP32)
        kept = max(layer.cache_slots for layer in self.geometry.layers) * position
        return kept if stored == "fp16" else 2 * kept + self.geometry.L_max * position

    def _dequantized(self) -> int:
        """Bytes of what is dequantized at a time where weights stay in few bits."""
        return largest_dequantized_bytes(self.model, self.options)
