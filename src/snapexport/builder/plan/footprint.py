"""Counts the bytes that a running build holds, part by part, before it is made.

Caches, and what graphs pass on, follow from the specs of the build's graphs. Activations are
bounded by the tensors' shapes and by the target's measured factors (`contract/memory.py`). The
factors of ONNX Runtime are fitted to measured runs (docs/how-to/plan.md). Those of a GPU are not
measured: only TensorRT's builder knows what its layers take.
"""

from dataclasses import dataclass
from functools import cached_property

from snapexport.builder import BuildOptions
from snapexport.builder.plan.model import PlannedModel
from snapexport.builder.plan.weights import held_bytes, largest_dequantized_bytes
from snapexport.contract import names
from snapexport.contract.build_directory import graph_specs
from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.graph_kinds import graph_of
from snapexport.contract.manifest import FORMAT_VERSION, Manifest
from snapexport.contract.memory import (
    FACTORS,
    FP32_BYTES,
    Factors,
    fused_scratch_bytes,
    planned_bytes,
    scores_bytes,
    vote_scores_bytes,
)
from snapexport.contract.model_facts import ModelFacts
from snapexport.contract.targets import (
    FEWER_SLOTS,
    LARGEST_PLUGIN_HEAD,
    SINK_CHANNELS,
    TargetCapabilities,
    capabilities,
)
from snapexport.files.dtypes import BY_FLAG
from snapexport.methods import table


@dataclass(frozen=True)
class PlannedTensors:
    """Bytes by the specs of a build's graphs, for one batch slot.

    request_cache: of decode, with what methods hold beside. prompt_cache: of prefill, of
    full length. outputs: of prefill and the compress step, beside caches; of votes, before and
    after a chunk.
    """

    request_cache: int
    prompt_cache: int
    outputs: int

    @classmethod
    def of(
        cls, facts: ModelFacts, options: BuildOptions, geometry: CacheGeometry, chunk: int
    ) -> "PlannedTensors":
        """geometry, chunk: those of `options` for a model of these facts."""
        request, prompt, outputs = 0, 0, 0
        for name, given, made in graph_specs(planned_manifest(facts, options, geometry, chunk)):
            caches = planned_bytes(spec for key, spec in given.items() if names.is_past(key))
            fresh = planned_bytes(
                spec
                for key, spec in made.items()
                if not (names.is_present(key) or names.past_of(key) in given)
            )
            kind = graph_of(name).kind
            request += caches if kind.owns_caches and kind.rows == "batch" else 0
            prompt += caches if name == "prefill" else 0
            outputs += fresh if name in ("prefill", "compress") else 0
            outputs += 2 * fresh if kind.counts_votes and name != "compress" else 0
        return cls(request, prompt, outputs)


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Bytes of a running build, as if all were resident. request_cache: of one request in decode.

    prefill_work, compress_work, decode_work: activations. shares_work: whether the graphs share the
    memory of their activations; no two graphs run at once.
    """

    process: int
    weights: int
    request_cache: int
    batch: int
    prefill_cache: int
    prefill_work: int
    compress_work: int
    decode_work: int
    shares_work: bool

    @property
    def decode_cache(self) -> int:
        return self.request_cache * self.batch

    @property
    def decode_resident(self) -> int:
        """Bytes while decoding: all but the work of prefill and of the compress step."""
        caches = self.decode_cache + self.prefill_cache
        return self.process + self.weights + caches + self.decode_work

    @property
    def prefill_peak(self) -> int:
        """The peak: a prompt is prefilled while every batch slot holds a request."""
        resting = self.decode_resident - self.decode_work
        work = (self.prefill_work, self.compress_work, self.decode_work)
        return resting + (max(work) if self.shares_work else sum(work))


def footprint(
    model: PlannedModel,
    options: BuildOptions,
    geometry: CacheGeometry,
    chunk: int,
    tensors: PlannedTensors | None = None,
) -> Footprint:
    """The footprint of a build. geometry, chunk: those of `options` for this model.

    tensors: of any batch, where they are counted already.
    """
    compresses_apart = geometry.compresses and not geometry.is_single_shot(chunk)
    tensors = tensors or PlannedTensors.of(model.facts, options, geometry, chunk)
    work = Activations(model, options, geometry, chunk)
    return Footprint(
        process=FACTORS[options.target].process,
        weights=held_bytes(model, options, geometry),
        request_cache=tensors.request_cache,
        batch=options.batch,
        prefill_cache=tensors.prompt_cache,
        prefill_work=work.prefill(tensors.outputs),
        compress_work=work.compress() if compresses_apart else 0,
        decode_work=work.decode(),
        shares_work=capabilities(options.target).runs_on_gpu,
    )


def planned_manifest(
    facts: ModelFacts, options: BuildOptions, geometry: CacheGeometry, chunk: int, batch: int = 1
) -> Manifest:
    """The manifest of the build, for one rank, without files. batch: batch slots."""
    return Manifest(
        format_version=FORMAT_VERSION,
        model=facts,
        geometry=geometry,
        batch=batch,
        prefill_chunk=chunk,
        dtype=options.dtype,
        quantization=options.quantization,
        target=options.target,
        graph_options=options.graph.recorded(),
        graphs={},
        traces={},
        tensor_parallel=1,
        segments={},
        weights=[],
        linked_weights=False,
        engines={},
        versions={},
    )


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
        taken = self.layer(self.chunk) * self._factors.arena
        if self._forms_scores:
            copies = self._factors.composed_scores if self._is_composed else 1
            taken += copies * self._scores(self.chunk, slots)
        if self.options.graph.prompt_cache_dtype:
            taken += slots * self._position(FP32_BYTES)
        taken += self._expanded_latents() + self._chunked_attention()
        taken += self._dequantized_bytes() + self._sparse()
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
            return self._rounding() * self._factors.arena
        widest = max(layer.query_dim for layer in facts.layers)
        if self._target.plugins and widest <= LARGEST_PLUGIN_HEAD:
            return self._scores(1, geometry.L_max)
        votes = vote_scores_bytes(facts, geometry, self.options.target, geometry.L_max)
        width = max(layer.kv_heads * layer.query_dim for layer in facts.layers)
        keys = width * geometry.L_max * self._working
        if self.options.graph.prompt_cache_dtype:
            votes += geometry.L_max * self._position(FP32_BYTES)
        return (votes + self._factors.vote_keys * keys + self._rounding()) * self._factors.arena

    def decode(self) -> int:
        """Bytes of a decode step: a row and scores for each token, logits [B,V] or [B,C,V]."""
        tokens = self.options.batch * self.geometry.steps.tokens
        widest = max(layer.cache_slots for layer in self.geometry.layers)
        rows = self.layer(tokens) + self._scores(tokens, widest) + self._fewer_slots(widest)
        logits = 2 * tokens * self.model.facts.vocab_size * FP32_BYTES
        return rows * self._factors.arena + logits + self._dequantized_bytes()

    def _fewer_slots(self, slots: int) -> int:
        """Bytes of the cache slots that a decode step copies while no others are valid."""
        copies = self.options.dtype in self._target.reads_fewer_slots
        copied = slots // FEWER_SLOTS[0] * self.options.batch if copies else 0
        return copied * self._position(FP32_BYTES)

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
    def _factors(self) -> Factors:
        return FACTORS[self.options.target]

    @property
    def _single_shot(self) -> bool:
        return self.geometry.is_single_shot(self.chunk)

    @property
    def _is_composed(self) -> bool:
        """No target has a fused kernel for soft-capped scores, sinks in fp32, or such widths."""
        features = self.model.facts.features
        has_other_widths = features["latent"] or features["unfused_widths"]
        return self.model.softcapped or self._has_sinks or has_other_widths

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
            and not model.facts.features["unfused_widths"]
            and not self._is_too_wide
        )
        return model.softcapped or not is_fused

    @property
    def _is_too_wide(self) -> bool:
        """Whether a fused kernel takes no heads as wide as those of some layer."""
        shapes = self._target.fused_shapes
        widest = max(layer.widest for layer in self.model.facts.layers)
        return shapes is not None and widest > shapes.largest_head_dim

    def _chunked_attention(self) -> int:
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
        read = kind.attended(self.options.graph, 0, self.chunk, slots)
        read *= self._position(self._working)
        return (self.layer(self.chunk) + self._factors.sparse_reads * read) * self._factors.arena

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
        converts = not self._target.runs_on_gpu and item < FP32_BYTES
        return item + FP32_BYTES if converts else item

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
        position = self._position(FP32_BYTES)
        kept = max(layer.cache_slots for layer in self.geometry.layers) * position
        return kept if stored == "fp16" else 2 * kept + self.geometry.L_max * position

    def _dequantized_bytes(self) -> int:
        """Bytes of what is dequantized at a time where weights stay in few bits."""
        return largest_dequantized_bytes(self.model, self.options)
