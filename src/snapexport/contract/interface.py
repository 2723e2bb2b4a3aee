"""Derives the inputs and outputs of every graph from a build's facts, and compares the manifest's.

A backend compares the manifest's with the graph's own when it loads it. So facts and graphs agree,
and nothing is allocated by a number that only one place tells. A new input or output has its line
here.
"""

from collections.abc import Callable, Iterator, Mapping

from snapexport.contract import names
from snapexport.contract.geometry import CacheGeometry, too_small
from snapexport.contract.manifest import (
    BASELINE,
    MTP,
    MTP_PREFILL,
    REBUILD,
    VERIFY,
    GraphEntry,
    GraphName,
    Manifest,
    TensorSpec,
)
from snapexport.errors import UserError
from snapexport.files.dtypes import BY_FLAG

Shape = tuple[int, ...]
Specs = dict[str, tuple[str, Shape]]
"""{name: (type, shape)}."""

OfLayer = Callable[[int], str]
"""The name of a layer's tensor."""


def require_interface(manifest: Manifest) -> None:
    """Raise UserError for graphs that are missing, too many, or not those of the facts."""
    _require_capacities(manifest)
    found, wanted = set(manifest.graphs), set(_graph_names(manifest))
    if found != wanted:
        missing, more = sorted(wanted - found), sorted(found - wanted)
        what = f"lacks the graph {missing[0]}" if missing else f"has the graph {more[0]} too much"
        raise UserError(f"the manifest {what}", REBUILD)
    for name, entry in manifest.graphs.items():
        _require_file(entry, f"{name}.onnx")
        inputs, outputs, optional = _Facts(manifest, name).specs()
        _compare(name, "inputs", _own_inputs(manifest, entry), inputs, {})
        _compare(name, "outputs", entry.outputs, outputs, optional)
    for trace, entry in manifest.traces.items():
        _require_file(entry, f"{trace}.trace.onnx")
        inputs, outputs = _Facts(manifest, trace).traced()
        _compare(f"{trace}.trace", "inputs", entry.inputs, inputs, {})
        _compare(f"{trace}.trace", "outputs", entry.outputs, outputs, {})
    if manifest.traces and set(manifest.traces) != {"prefill", "decode"}:
        raise UserError("the manifest has one trace without the other", REBUILD)


def graph_specs(manifest: Manifest) -> Iterator[tuple[GraphName, Specs, Specs]]:
    """(name, inputs, outputs) of the graphs of a build that is not made yet, without weights.

    manifest: without graphs; then those for smaller batches and capacities are left out.
    """
    for name in _graph_names(manifest):
        inputs, outputs, _ = _Facts(manifest, name).specs()
        yield name, inputs, outputs


def _require_capacities(manifest: Manifest) -> None:
    """A prompt moves from one prefill capacity to the next, in the same memory."""
    L_max = manifest.geometry.L_max
    smaller = [capacity for capacity in manifest.prefill_graphs() if capacity < L_max]
    if found := too_small(smaller, manifest.prefill_chunk, L_max):
        raise UserError(
            f"the manifest has a prefill capacity of {found[0]}, which is below {found[1]}", REBUILD
        )


def _graph_names(manifest: Manifest) -> Iterator[GraphName]:
    yield from ("prefill", "decode")
    if manifest.geometry.compresses and not manifest.single_shot:
        yield "compress"
    if manifest.geometry.repeats:
        yield "vote"
    if manifest.graph_options.extend:
        yield "extend"
    if manifest.graph_options.mtp:
        yield from (MTP, MTP_PREFILL)
    has_baseline = any(name.startswith(BASELINE) for name in manifest.graphs)
    if has_baseline:
        yield from (f"{BASELINE}prefill", f"{BASELINE}decode")
    if manifest.geometry.tokens_per_step > 1:
        yield VERIFY
        yield from (f"{VERIFY}.{n}" for n in manifest.decode_graphs() if n < manifest.batch)
    for prefix in ("", BASELINE) if has_baseline else ("",):  # the baseline has the same ones
        for slots in manifest.decode_graphs():
            if slots < manifest.batch:
                yield f"{prefix}decode.{slots}"
        for capacity in manifest.prefill_graphs():
            if capacity < manifest.geometry.L_max:
                yield f"{prefix}prefill.{capacity}"


def _require_file(entry: GraphEntry, file: str) -> None:
    if entry.file != file:
        raise UserError(f"the manifest names {entry.file!r:.200} in place of {file}", REBUILD)


class _Facts:
    """The tensors of one graph, by the facts of its build."""

    def __init__(self, manifest: Manifest, name: GraphName) -> None:
        self._manifest = manifest
        self._model = manifest.model.cut(manifest.tensor_parallel)
        self._kind, _, size = name.removeprefix(BASELINE).partition(".")
        is_smaller = {self._kind: int(size)} if size else {}
        self._batch = is_smaller.get("decode", is_smaller.get(VERIFY, manifest.batch))
        self._tokens = manifest.geometry.tokens_per_step if self._kind == VERIFY else 1
        self._capacity = is_smaller.get("prefill", manifest.geometry.L_max)
        self._dtype = BY_FLAG[manifest.dtype].numpy
        self._full = name.startswith(BASELINE) or not manifest.geometry.compresses
        self._options = manifest.graph_options
        if self._full:
            self._options = self._options.of_full_cache()

    @property
    def _geometry(self) -> CacheGeometry:
        return self._manifest.geometry

    def specs(self) -> tuple[Specs, Specs, Specs]:
        """Inputs, outputs, and outputs that may be there."""
        make = {
            "prefill": self._prefill,
            "compress": self._compress,
            "vote": self._vote,
            "extend": self._extend,
            "decode": self._decode,
            VERIFY: self._decode,
            MTP: self._draft,
            MTP_PREFILL: self._drafted_prompt,
        }
        inputs, outputs = make[self._kind]()
        queries = self._queries() if self._kind == "decode" else {}
        return inputs, outputs, queries

    def traced(self) -> tuple[Specs, Specs]:
        """Inputs and outputs of the trace, which has no caches."""
        rows, tokens = 1, self._manifest.prefill_chunk
        others: dict[str, Shape] = {names.PAST_LENGTH: (1,), names.CHUNK_LENGTH: (1,)}
        if self._kind == "decode":
            rows, tokens = self._batch, 1
            others = {names.POSITION_IDS: (rows, 1)}
        shapes = {names.INPUT_IDS: (rows, tokens), **others}
        logits: Specs = {names.LOGITS: ("float32", (rows, self._model.vocab_size))}
        inputs: Specs = {name: ("int64", shape) for name, shape in shapes.items()}
        return inputs, logits | self._hidden_states(rows, tokens)

    def _prefill(self) -> tuple[Specs, Specs]:
        ids: Specs = {names.INPUT_IDS: ("int64", (1, self._manifest.prefill_chunk))}
        top_inputs, top_outputs = self._sampled(1)
        top_outputs |= self._hidden_states(1, self._manifest.prefill_chunk)
        if self._manifest.single_shot and not self._full:
            length: Specs = {names.PROMPT_LENGTH: ("int64", (1,))}
            return ids | length | top_inputs, top_outputs | self._compressed()
        lengths: Specs = dict.fromkeys((names.PAST_LENGTH, names.CHUNK_LENGTH), ("int64", (1,)))
        if self._manifest.single_shot:
            return self._whole_prompt(ids, top_inputs, top_outputs)
        outputs = top_outputs | self._whole(names.present_key, names.present_value)
        inputs = ids | lengths | top_inputs | self._whole(names.past_key, names.past_value)
        return inputs, outputs if self._full else outputs | self._windows()

    def _whole_prompt(self, ids: Specs, inputs: Specs, outputs: Specs) -> tuple[Specs, Specs]:
        """A single shot into the full cache."""
        present = self._whole(names.present_key, names.present_value)
        return ids | {names.PROMPT_LENGTH: ("int64", (1,))} | inputs, outputs | present

    def _compress(self) -> tuple[Specs, Specs]:
        length: Specs = {names.PROMPT_LENGTH: ("int64", (1,))}
        past = self._whole(names.past_key, names.past_value)
        decides = self._votes(names.votes) if self._geometry.repeats else self._windows()
        return length | past | decides, self._compressed()

    def _vote(self) -> tuple[Specs, Specs]:
        """The votes of a repeated chunk, in the layers that have some."""
        voting = [layer for layer, one in enumerate(self._geometry.layers) if one.K]
        keys = (names.past_key, names.past_value) if self._model.kv_lora_rank else (names.past_key,)
        read = {name(layer) for layer in voting for name in (*keys, names.query_window)}
        given = self._whole(names.past_key, names.past_value) | self._windows()
        inputs: Specs = {names.PROMPT_LENGTH: ("int64", (1,))}
        inputs |= {name: spec for name, spec in given.items() if name in read}
        return inputs | self._votes(names.votes), self._votes(names.present_votes)

    def _votes(self, name_of: OfLayer) -> Specs:
        shape = (1, self._model.num_key_value_heads, self._geometry.L_max)
        voting = [layer for layer, one in enumerate(self._geometry.layers) if one.K]
        return {name_of(layer): ("float32", shape) for layer in voting}

    def _extend(self) -> tuple[Specs, Specs]:
        chunk = self._manifest.prefill_chunk
        top_inputs, outputs = self._sampled(1)
        inputs: Specs = {
            names.INPUT_IDS: ("int64", (1, chunk)),
            names.POSITION_IDS: ("int64", (1, chunk)),
            names.CHUNK_LENGTH: ("int64", (1,)),
        }
        states = self._caches(1)
        for index, one in enumerate(self._geometry.layers):
            shape = (1, self._kv_heads[index], one.cache_slots)
            states[names.slot_positions(index)] = ("int64", shape)
        presents = {names.present_of(name): spec for name, spec in states.items()}
        outputs |= self._hidden_states(1, chunk)
        return inputs | top_inputs | states, outputs | presents

    def _decode(self) -> tuple[Specs, Specs]:
        batch, several = self._batch, self._geometry.tokens_per_step > 1 and not self._full
        ids: Shape = (batch, self._tokens)
        inputs: Specs = dict.fromkeys((names.INPUT_IDS, names.POSITION_IDS), ("int64", ids))
        if several:
            inputs |= self._places()
        elif not self._full:
            inputs[names.PROMPT_LENGTH] = ("int64", (batch,))
        if self._options.data_parallel_attention:
            inputs[names.RANK] = ("int64", (1,))
        top_inputs, outputs = self._sampled(*(ids if self._tokens > 1 else (batch,)))
        caches = self._caches(batch // self._ranks_of_batch)
        inputs |= top_inputs | caches
        outputs |= {names.present_of(name): spec for name, spec in caches.items()}
        if self._options.attends_valid and not several:
            for index in range(self._geometry.num_layers):
                outputs[names.attended_key(index)] = caches[names.past_key(index)]
                outputs[names.attended_value(index)] = caches[names.past_value(index)]
        return inputs, outputs | self._hidden_states(batch, self._tokens)

    def _places(self) -> Specs:
        specs: Specs = {}
        for index, shape in enumerate(dict.fromkeys(self._geometry.layers)):
            write_slot, slot_positions = names.place_inputs(index)
            specs[write_slot] = ("int64", (self._batch,))
            specs[slot_positions] = ("int64", (self._batch, shape.cache_slots))
        return specs

    def _draft(self) -> tuple[Specs, Specs]:
        """A step of multi-token prediction."""
        batch = self._batch
        ids: Specs = dict.fromkeys((names.INPUT_IDS, names.POSITION_IDS), ("int64", (batch, 1)))
        states = self._hidden_states(batch, 1)
        top_inputs, outputs = self._sampled(batch)
        ring = self._draft_ring(batch)
        presents = {names.present_of(name): spec for name, spec in ring.items()}
        outputs[names.NEXT_HIDDEN_STATES] = states[names.HIDDEN_STATES]
        return ids | top_inputs | states | ring, outputs | presents

    def _drafted_prompt(self) -> tuple[Specs, Specs]:
        """A chunk of multi-token prediction."""
        chunk = self._manifest.prefill_chunk
        ids: Specs = {names.INPUT_IDS: ("int64", (1, chunk))}
        lengths: Specs = dict.fromkeys((names.PAST_LENGTH, names.CHUNK_LENGTH), ("int64", (1,)))
        ring = self._draft_ring(1)
        presents = {names.present_of(name): spec for name, spec in ring.items()}
        return ids | lengths | self._hidden_states(1, chunk) | ring, presents

    def _hidden_states(self, rows: int, tokens: int) -> Specs:
        """The manifest's facts have no hidden size: every graph has the one that decode has."""
        if not self._options.mtp:
            return {}
        decode = self._manifest.graphs.get("decode")
        shapes = {spec.name: spec.shape for spec in decode.outputs} if decode else {}
        *_, width = shapes.get(names.HIDDEN_STATES) or [0]
        return {names.HIDDEN_STATES: (self._dtype, (rows, tokens, width))}

    def _draft_ring(self, rows: int) -> Specs:
        """The cache of the layer for multi-token prediction, which comes after the last."""
        past = (names.past_key(self._layers), names.past_value(self._layers))
        return {
            name: (self._stored, self._states(rows, self._geometry.draft_ring, width))
            for name, width in zip(past, self._widths, strict=True)
        }

    @property
    def _ranks_of_batch(self) -> int:
        """How many ranks share decode's batch slots."""
        shared = self._options.data_parallel_attention
        return self._manifest.tensor_parallel if shared else 1

    @property
    def _layers(self) -> int:
        return self._model.num_hidden_layers

    def _sampled(self, *rows: int) -> tuple[Specs, Specs]:
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

    def _whole(self, *name_of: OfLayer) -> Specs:
        """Caches of a whole prompt. name_of: of keys and of values."""
        layers = range(self._layers)
        return {
            name(layer): (self._dtype, self._states(1, self._capacity, width))
            for layer in layers
            for name, width in zip(name_of, self._widths, strict=True)
        }

    @property
    def _widths(self) -> tuple[int, int]:
        """Of a cached key and of a cached value."""
        return self._model.key_dim, self._model.value_dim

    def _states(self, rows: int, slots: int, width: int) -> Shape:
        return rows, self._model.num_key_value_heads, slots, width

    @property
    def _kv_heads(self) -> tuple[int, ...]:
        """KV heads of each cache of decode."""
        geometry = self._geometry.as_full() if self._full else self._geometry
        return geometry.heads_held(self._model.num_key_value_heads)

    @property
    def _stored(self) -> str:
        """The type of decode's caches."""
        return self._dtype if self._full else BY_FLAG[self._manifest.cache_dtype].numpy

    def _caches(self, rows: int) -> Specs:
        """Decode's caches, before the step."""
        geometry, stored = self._geometry, self._stored
        specs: Specs = {}
        for index, heads in enumerate(self._kv_heads):
            slots = geometry.L_max if self._full else geometry.layers[index].cache_slots
            states = (names.past_key(index), names.past_value(index))
            scales = (names.past_key_scale(index), names.past_value_scale(index))
            for name, width in zip(states, self._widths, strict=True):
                specs[name] = (stored, (rows, heads, slots, width))
            if stored == "int8":
                for name, width in zip(scales, self._widths, strict=True):
                    specs[name] = ("float32", (rows, heads, 1, width))
        return specs

    def _compressed(self) -> Specs:
        """One compressed prompt, and what it kept."""
        specs = {names.present_of(name): spec for name, spec in self._caches(1).items()}
        for index, one in enumerate(self._geometry.layers):
            if one.K:
                shape = (1, self._kv_heads[index], one.K)
                specs[names.topk_positions(index)] = ("int64", shape)
        return specs

    def _windows(self) -> Specs:
        model = self._model
        shape = (1, model.num_attention_heads, self._geometry.L_obs, model.head_dim)
        return {names.query_window(layer): (self._dtype, shape) for layer in range(self._layers)}

    def _queries(self) -> Specs:
        """Outputs of graphs made to tell the vote's hit rate."""
        model = self._model
        group = model.num_attention_heads // model.num_key_value_heads
        return {
            names.query(index): (self._dtype, (self._batch, group * heads, 1, model.head_dim))
            for index, heads in enumerate(self._kv_heads)
        }


_WITHOUT_WEIGHTS = "compress.onnx", "vote.onnx"


def _own_inputs(manifest: Manifest, entry: GraphEntry) -> list[TensorSpec]:
    """All inputs but shared weights, which are compared with their files when they are loaded."""
    if not manifest.graph_options.share_weights:
        return entry.inputs
    own = [spec for spec in entry.inputs if not names.is_weight(spec.name)]
    if len(own) == len(entry.inputs) and entry.file not in _WITHOUT_WEIGHTS:
        raise UserError(f"the manifest says that {entry.file} shares weights, it has none", REBUILD)
    return own


def _compare(
    graph: GraphName,
    kind: str,
    told: list[TensorSpec],
    wanted: Specs,
    optional: Specs,
) -> None:
    """optional: tensors that may be missing."""
    found: Mapping[str, tuple[str, Shape]] = {
        spec.name: (spec.dtype, tuple(spec.shape)) for spec in told
    }
    if len(found) < len(told):
        raise UserError(f"the manifest names one of {graph}'s {kind} twice", REBUILD)
    for name in wanted.keys() | found.keys():
        expected = wanted.get(name, optional.get(name))
        given = found.get(name)
        if expected != given and not (given is None and name in optional):
            raise UserError(
                f"the manifest's {kind} of {graph} have {_spelled(given)} for {name!r:.200}, its "
                f"geometry wants {_spelled(expected)}",
                REBUILD,
            )


def _spelled(spec: tuple[str, Shape] | None) -> str:
    return f"{spec[0]:.20} {list(spec[1])!r:.100}" if spec else "nothing"
