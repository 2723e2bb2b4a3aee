"""Derives the inputs and outputs of the common kinds of graphs from a build's facts.

A cache method adds its own (`Method.tensors`), and has kinds of its own. `graph_kinds.tensors`
gives all of a graph.
"""

from typing import NamedTuple, Protocol

from snapexport.contract import names
from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.graph_options import GraphOptions
from snapexport.contract.model_facts import LayerHeads, ModelFacts
from snapexport.contract.slots import LayerGeometry
from snapexport.files.dtypes import BY_FLAG, CacheDType, DType

Shape = tuple[int, ...]
Specs = dict[str, tuple[str, Shape]]
"""{name: (type, shape)}."""

Tensors = tuple[Specs, Specs]
"""Inputs but weights, and outputs."""


class BuildFacts(Protocol):
    """Facts of a manifest that hold for all graphs."""

    @property
    def single_shot(self) -> bool: ...
    @property
    def cache_dtype(self) -> CacheDType: ...

    model: ModelFacts
    geometry: CacheGeometry
    batch: int
    prefill_chunk: int
    dtype: DType
    graph_options: GraphOptions
    tensor_parallel: int


class Held(NamedTuple):
    """A cache of decode: its number, its KV heads, its slots, and the heads of its layer."""

    cache: int
    kv_heads: int
    shape: LayerGeometry
    layer: LayerHeads


class GraphFacts:
    """The facts of a build that one graph's tensors follow from.

    model: one rank's. batch, chunk, capacity: of this graph; batch slots, tokens, and positions of
    a full-length cache. dtype: as NumPy spells it. is_full: whether the graph is of the full cache.
    options: those that hold for it. hidden_size: width of the hidden states.
    """

    def __init__(
        self,
        build: BuildFacts,
        *,
        batch: int = 0,
        capacity: int = 0,
        tokens: int = 0,
        is_baseline: bool = False,
        hidden_size: int = 0,
    ) -> None:
        """batch, capacity: of a graph that is not for all of them. tokens: of a shorter chunk."""
        self.build, self.hidden_size = build, hidden_size
        self.geometry = build.geometry
        self.model = build.model.cut(build.tensor_parallel)
        self.batch = batch or build.batch
        self.chunk = tokens or build.prefill_chunk
        self.capacity = capacity or build.geometry.L_max
        self.dtype = BY_FLAG[build.dtype].numpy
        self.is_full = is_baseline or not build.geometry.compresses
        self.options = build.graph_options
        if self.is_full:
            self.options = self.options.of_full_cache()

    def prefill(self) -> Tensors:
        """A chunk of a prompt, or all of it."""
        ids: Specs = {names.INPUT_IDS: ("int64", (1, self.chunk))}
        length: Specs = {names.PROMPT_LENGTH: ("int64", (1,))}
        logits = self.logits(1)
        if self.build.single_shot and not self.is_full:
            return ids | length, logits | self._compressed_row()
        presents = self.whole(names.present_key, names.present_value)
        if self.build.single_shot:
            return ids | length, logits | presents
        lengths: Specs = dict.fromkeys((names.PAST_LENGTH, names.CHUNK_LENGTH), ("int64", (1,)))
        return ids | lengths | self.whole(names.past_key, names.past_value), logits | presents

    def compress(self) -> Tensors:
        """The compress step."""
        length: Specs = {names.PROMPT_LENGTH: ("int64", (1,))}
        return length | self.whole(names.past_key, names.past_value), self._compressed_row()

    def decode(self, tokens: int = 1) -> Tensors:
        """A decode step of `tokens` tokens of each batch slot."""
        batch, several = self.batch, self.geometry.steps.several and not self.is_full
        ids: Shape = (batch, tokens)
        inputs: Specs = dict.fromkeys((names.INPUT_IDS, names.POSITION_IDS), ("int64", ids))
        if not self.is_full and (self.geometry.votes or not several):
            inputs[names.PROMPT_LENGTH] = ("int64", (batch,))
        if self.options.data_parallel_attention:
            inputs[names.RANK] = ("int64", (1,))
        outputs = self.logits(*(ids if tokens > 1 else (batch,)))
        caches = self.caches(batch // self._ranks_of_batch)
        inputs |= caches
        outputs |= after(caches)
        if self.options.attends_valid and not several:
            for cache in self.held:
                outputs[names.attended_key(cache.cache)] = caches[names.past_key(cache.cache)]
                outputs[names.attended_value(cache.cache)] = caches[names.past_value(cache.cache)]
        return inputs, outputs

    @property
    def _ranks_of_batch(self) -> int:
        """How many ranks share decode's batch slots."""
        shared = self.options.data_parallel_attention
        return self.build.tensor_parallel if shared else 1

    def logits(self, *rows: int) -> Specs:
        """rows: batch slots, and tokens of each where they are several."""
        return {names.LOGITS: ("float32", (*rows, self.model.vocab_size))}

    @property
    def prompt_dtype(self) -> str:
        """The type of prefill's caches, and of the queries that score them."""
        return BY_FLAG[self.options.prompt_cache_dtype or self.build.dtype].numpy

    @property
    def stored(self) -> str:
        """The type of decode's caches."""
        return self.dtype if self.is_full else BY_FLAG[self.build.cache_dtype].numpy

    def whole(self, *name_of: names.OfNumber) -> Specs:
        """Caches of a whole prompt. name_of: of keys and of values."""
        return {
            name(index): (self.prompt_dtype, (1, layer.kv_heads, self.capacity, width))
            for index, layer in self.model.cached.items()
            for name, width in zip(name_of, layer.widths, strict=True)
        }

    @property
    def voting(self) -> list[int]:
        """The layers whose caches keep positions that a vote chose."""
        caches = zip(self.geometry.slots.caches, self.geometry.layers, strict=True)
        return [one.layer for one, shape in caches if shape.K]

    @property
    def held(self) -> list[Held]:
        """The caches of decode."""
        geometry, layers = self.geometry, self.model.layers
        geometry = geometry.as_full() if self.is_full else geometry
        return [
            Held(one.cache, one.count(layers[one.layer].kv_heads), shape, layers[one.layer])
            for one, shape in zip(geometry.slots.caches, geometry.layers, strict=True)
        ]

    def caches(self, rows: int) -> Specs:
        """Decode's caches, before the step."""
        return {
            name: (self.stored, (rows, kv_heads, shape.cache_slots, width))
            for cache, kv_heads, shape, layer in self.held
            for name, width in zip(
                (names.past_key(cache), names.past_value(cache)), layer.widths, strict=True
            )
        }

    def _compressed_row(self) -> Specs:
        """One compressed prompt, and what it kept."""
        specs = after(self.caches(1))
        for cache, kv_heads, shape, _ in self.held:
            if shape.K:
                specs[names.topk_positions(cache)] = ("int64", (1, kv_heads, shape.K))
        return specs

    def queries(self) -> Specs:
        """Outputs of graphs made to show the vote's hit rate."""
        return {
            names.query(cache): (
                self.dtype,
                (self.batch, layer.group * kv_heads, 1, layer.query_dim),
            )
            for cache, kv_heads, _, layer in self.held
        }


def after(pasts: Specs) -> Specs:
    """The outputs that take the places of inputs."""
    return {names.present_of(name): spec for name, spec in pasts.items()}
