"""Derives the inputs and outputs of each kind of graph from a build's facts.

A new input or output has its line here.
"""

from typing import NamedTuple, Protocol

from snapexport.contract import names
from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.graph_options import GraphOptions
from snapexport.contract.layer_geometry import LayerGeometry
from snapexport.contract.layer_heads import LayerHeads
from snapexport.contract.model_facts import ModelFacts
from snapexport.files.dtypes import BY_FLAG, CacheDType, DType

Shape = tuple[int, ...]
Specs = dict[str, tuple[str, Shape]]
"""{name: (type, shape)}."""

Tensors = tuple[Specs, Specs]
"""Inputs but weights, and outputs."""


class BuildFacts(Protocol):
    """What a manifest says of all graphs."""

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


class GraphFacts:
    """The facts of a build that one graph's tensors follow from.

    batch, capacity: batch slots, and positions of a full-length cache, of a graph that is not for
    all of them. tokens: of a short chunk; 0: `prefill_chunk`. hidden_size: width of the hidden
    states. Its methods give the tensors of each kind (`contract/graph_kinds.py`).
    """

    def __init__(
        self,
        manifest: BuildFacts,
        *,
        batch: int = 0,
        capacity: int = 0,
        tokens: int = 0,
        is_baseline: bool = False,
        hidden_size: int = 0,
    ) -> None:
        self._hidden_size = hidden_size
        self._manifest = manifest
        self._model = manifest.model.cut(manifest.tensor_parallel)
        self._batch = batch or manifest.batch
        self._chunk = tokens or manifest.prefill_chunk
        self._capacity = capacity or manifest.geometry.L_max
        self._dtype = BY_FLAG[manifest.dtype].numpy
        self._full = is_baseline or not manifest.geometry.compresses
        self._options = manifest.graph_options
        if self._full:
            self._options = self._options.of_full_cache()

    @property
    def _geometry(self) -> CacheGeometry:
        return self._manifest.geometry

    def traced(self, name: str) -> Tensors:
        """Those of a trace, which has no caches. name: prefill or decode."""
        rows, tokens = 1, self._chunk
        others: dict[str, Shape] = {names.PAST_LENGTH: (1,), names.CHUNK_LENGTH: (1,)}
        if name == "decode":
            rows, tokens = self._batch, 1
            others = {names.POSITION_IDS: (rows, 1)}
        shapes = {names.INPUT_IDS: (rows, tokens), **others}
        logits: Specs = {names.LOGITS: ("float32", (rows, self._model.vocab_size))}
        inputs: Specs = {name: ("int64", shape) for name, shape in shapes.items()}
        return inputs, logits | self._hidden_states(rows, tokens)

    def prefill(self) -> Tensors:
        """A chunk of a prompt, or all of it."""
        ids: Specs = {names.INPUT_IDS: ("int64", (1, self._chunk))}
        top_inputs, top_outputs = self._sampled(1)
        top_outputs |= self._hidden_states(1, self._chunk)
        if self._manifest.single_shot and not self._full:
            length: Specs = {names.PROMPT_LENGTH: ("int64", (1,))}
            compressed = self._compressed() | _after(self._states(1))
            return ids | length | top_inputs, top_outputs | compressed
        lengths: Specs = dict.fromkeys((names.PAST_LENGTH, names.CHUNK_LENGTH), ("int64", (1,)))
        if self._manifest.single_shot:
            return self._whole_prompt(ids, top_inputs, top_outputs)
        states = self._states(1)
        outputs = top_outputs | self._whole(names.present_key, names.present_value)
        outputs |= _after(states)
        inputs = ids | lengths | top_inputs | self._whole(names.past_key, names.past_value) | states
        return inputs, outputs if self._full else outputs | self._windows()

    def prefill_sparse(self) -> Tensors:
        """A chunk amid a long prompt: nobody reads its logits."""
        chunk = self._chunk
        inputs: Specs = {names.INPUT_IDS: ("int64", (1, chunk)), names.PAST_LENGTH: ("int64", (1,))}
        states = self._whole(names.past_key, names.past_value) | self._block_keys(chunk)
        presents = {names.present_of(name): spec for name, spec in states.items()}
        return inputs | states, presents | self._hidden_states(1, chunk)

    def _block_keys(self, chunk: int) -> Specs:
        """Of the layers that choose blocks."""
        sparse = self._options.sparse_prefill(chunk)
        assert sparse, "only builds with a budget have such chunks"
        blocks = self._capacity // sparse.block
        return {
            names.past_block_key(index): (self._dtype, (1, layer.kv_heads, blocks, layer.key_dim))
            for index, layer in self._model.cached.items()
            if not layer.reach
        }

    def _whole_prompt(self, ids: Specs, inputs: Specs, outputs: Specs) -> Tensors:
        """A single shot into the full cache."""
        present = self._whole(names.present_key, names.present_value) | _after(self._states(1))
        return ids | {names.PROMPT_LENGTH: ("int64", (1,))} | inputs, outputs | present

    def compress(self) -> Tensors:
        """The compress step."""
        length: Specs = {names.PROMPT_LENGTH: ("int64", (1,))}
        past = self._whole(names.past_key, names.past_value)
        decides = self._votes(names.votes) if self._geometry.voters == "repeat" else self._windows()
        return length | past | decides, self._compressed()

    def vote(self) -> Tensors:
        """The votes of a repeated chunk, in the layers that have some."""
        keys = (names.past_key, names.past_value) if self._model.latent else (names.past_key,)
        read = {name(layer) for layer in self._voting for name in (*keys, names.query_window)}
        given = self._whole(names.past_key, names.past_value) | self._windows()
        inputs: Specs = {names.PROMPT_LENGTH: ("int64", (1,))}
        inputs |= {name: spec for name, spec in given.items() if name in read}
        return inputs | self._votes(names.votes), self._votes(names.present_votes)

    def _votes(self, name_of: names.OfNumber) -> Specs:
        L_max, kv_heads = self._geometry.L_max, self._model.kv_heads
        return {name_of(layer): ("float32", (1, kv_heads[layer], L_max)) for layer in self._voting}

    @property
    def _voting(self) -> list[int]:
        """The layers whose caches keep positions that a vote chose."""
        caches = zip(self._geometry.slots.caches, self._geometry.layers, strict=True)
        return [one.layer for one, shape in caches if shape.K]

    def extend(self) -> Tensors:
        """One more chunk onto a compressed cache."""
        chunk = self._chunk
        top_inputs, outputs = self._sampled(1)
        inputs: Specs = {
            names.INPUT_IDS: ("int64", (1, chunk)),
            names.POSITION_IDS: ("int64", (1, chunk)),
            names.CHUNK_LENGTH: ("int64", (1,)),
        }
        states = self._caches(1)
        for cache in self._held:
            shape = (1, cache.kv_heads, cache.shape.cache_slots)
            states[names.slot_positions(cache.cache)] = ("int64", shape)
        states |= self._states(1)
        outputs |= self._hidden_states(1, chunk)
        return inputs | top_inputs | states, outputs | _after(states)

    def verify(self) -> Tensors:
        """A decode step of several tokens."""
        return self.decode(self._geometry.steps.tokens_per_step)

    def decode(self, tokens: int = 1) -> Tensors:
        """A decode step of so many tokens of each batch slot."""
        batch, several = self._batch, self._geometry.steps.several and not self._full
        ids: Shape = (batch, tokens)
        inputs: Specs = dict.fromkeys((names.INPUT_IDS, names.POSITION_IDS), ("int64", ids))
        if several:
            inputs |= self._places()
        elif not self._full:
            inputs[names.PROMPT_LENGTH] = ("int64", (batch,))
        if self._options.data_parallel_attention:
            inputs[names.RANK] = ("int64", (1,))
        top_inputs, outputs = self._sampled(*(ids if tokens > 1 else (batch,)))
        caches = self._caches(batch // self._ranks_of_batch) | self._states(batch)
        inputs |= top_inputs | caches
        outputs |= _after(caches)
        if self._options.attends_valid and not several:
            for cache in self._held:
                outputs[names.attended_key(cache.cache)] = caches[names.past_key(cache.cache)]
                outputs[names.attended_value(cache.cache)] = caches[names.past_value(cache.cache)]
        return inputs, outputs | self._hidden_states(batch, tokens)

    def _places(self) -> Specs:
        specs: Specs = {}
        if self._geometry.votes:
            specs[names.PROMPT_LENGTH] = ("int64", (self._batch,))
        for index, shape in enumerate(dict.fromkeys(self._geometry.layers)):
            write_slot, slot_positions = names.place_inputs(index)
            specs[write_slot] = ("int64", (self._batch,))
            specs[slot_positions] = ("int64", (self._batch, shape.cache_slots))
        return specs

    def mtp(self) -> Tensors:
        """A step of multi-token prediction."""
        batch = self._batch
        ids: Specs = dict.fromkeys((names.INPUT_IDS, names.POSITION_IDS), ("int64", (batch, 1)))
        states = self._hidden_states(batch, 1)
        top_inputs, outputs = self._sampled(batch)
        ring = self._draft_ring(batch)
        outputs[names.NEXT_HIDDEN_STATES] = states[names.HIDDEN_STATES]
        return ids | top_inputs | states | ring, outputs | _after(ring)

    def mtp_prefill(self) -> Tensors:
        """A chunk of multi-token prediction."""
        chunk = self._chunk
        ids: Specs = {names.INPUT_IDS: ("int64", (1, chunk))}
        lengths: Specs = dict.fromkeys((names.PAST_LENGTH, names.CHUNK_LENGTH), ("int64", (1,)))
        ring = self._draft_ring(1)
        return ids | lengths | self._hidden_states(1, chunk) | ring, _after(ring)

    def _hidden_states(self, rows: int, tokens: int) -> Specs:
        if not self._options.mtp:
            return {}
        return {names.HIDDEN_STATES: (self._dtype, (rows, tokens, self._hidden_size))}

    def _draft_ring(self, rows: int) -> Specs:
        """The cache of the layer for multi-token prediction, which comes after the last."""
        count, slots = self._model.num_hidden_layers, self._geometry.draft_ring
        past, last = (names.past_key(count), names.past_value(count)), self._model.layer(count - 1)
        return {
            name: (self._stored, (rows, last.kv_heads, slots, width))
            for name, width in zip(past, last.widths, strict=True)
        }

    @property
    def _ranks_of_batch(self) -> int:
        """How many ranks share decode's batch slots."""
        shared = self._options.data_parallel_attention
        return self._manifest.tensor_parallel if shared else 1

    def _sampled(self, *rows: int) -> Tensors:
        """rows: batch slots, and tokens of each where they are several."""
        logits: Specs = {names.LOGITS: ("float32", (*rows, self._model.vocab_size))}
        if not (count := self._options.top_tokens):
            return {}, logits
        top: Specs = {
            names.TOP_TOKENS: ("int64", (*rows, count)),
            names.TOP_LOGITS: ("float32", (*rows, count)),
            names.LOG_NORMALIZER: ("float32", rows),
        }
        return {names.TEMPERATURE: ("float32", rows[:1])}, logits | top

    @property
    def _prompt_dtype(self) -> str:
        """The type of prefill's caches, and of the queries that score them."""
        return BY_FLAG[self._options.prompt_cache_dtype or self._manifest.dtype].numpy

    def _whole(self, *name_of: names.OfNumber) -> Specs:
        """Caches of a whole prompt. name_of: of keys and of values."""
        return {
            name(index): (self._prompt_dtype, (1, layer.kv_heads, self._capacity, width))
            for index, layer in self._model.cached.items()
            for name, width in zip(name_of, layer.widths, strict=True)
        }

    @property
    def _held(self) -> list["_Held"]:
        """The caches of decode."""
        geometry, layers = self._geometry, self._model.layers
        geometry = geometry.as_full() if self._full else geometry
        return [
            _Held(one.cache, one.count(layers[one.layer].kv_heads), shape, layers[one.layer])
            for one, shape in zip(geometry.slots.caches, geometry.layers, strict=True)
        ]

    @property
    def _stored(self) -> str:
        """The type of decode's caches."""
        return self._dtype if self._full else BY_FLAG[self._manifest.cache_dtype].numpy

    def _caches(self, rows: int) -> Specs:
        """Decode's caches, before the step."""
        stored, specs = self._stored, Specs()
        for cache, kv_heads, shape, layer in self._held:
            states = (names.past_key(cache), names.past_value(cache))
            scales = (names.past_key_scale(cache), names.past_value_scale(cache))
            for name, width in zip(states, layer.widths, strict=True):
                specs[name] = (stored, (rows, kv_heads, shape.cache_slots, width))
            if stored == "int8":
                for name, width in zip(scales, layer.widths, strict=True):
                    specs[name] = ("float32", (rows, kv_heads, 1, width))
        return specs

    def _states(self, rows: int) -> Specs:
        """Recurrent states, before the step."""
        specs = Specs()
        for index, sizes in self._model.stateful.items():
            if sizes.conv:
                specs[names.past_conv(index)] = (self._dtype, (rows, *sizes.conv))
            if sizes.matrix:
                specs[names.past_matrix(index)] = ("float32", (rows, *sizes.matrix))
        return specs

    def _compressed(self) -> Specs:
        """One compressed prompt, and what it kept."""
        specs = _after(self._caches(1))
        for cache, kv_heads, shape, _ in self._held:
            if shape.K:
                specs[names.topk_positions(cache)] = ("int64", (1, kv_heads, shape.K))
        return specs

    def _windows(self) -> Specs:
        """What votes of a prompt's tokens: nothing where the mean query of other texts does."""
        W = self._geometry.vote.L_obs
        if self._geometry.voters == "calibrated":
            return {}
        return {
            names.query_window(index): (self._prompt_dtype, (1, layer.heads, W, layer.query_dim))
            for index, layer in self._model.cached.items()
        }

    def queries(self) -> Specs:
        """Outputs of graphs made to tell the vote's hit rate."""
        return {
            names.query(cache): (
                self._dtype,
                (self._batch, layer.group * kv_heads, 1, layer.query_dim),
            )
            for cache, kv_heads, _, layer in self._held
        }


def _after(pasts: Specs) -> Specs:
    """The outputs that take the places of inputs."""
    return {names.present_of(name): spec for name, spec in pasts.items()}


class _Held(NamedTuple):
    """A cache of decode: its number, its KV heads, and the heads of its layer."""

    cache: int
    kv_heads: int
    shape: LayerGeometry
    layer: LayerHeads
