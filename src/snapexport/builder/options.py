"""Options of a build, and the cache geometry that follows from them.

Resolves budgets, presets and defaults; `CacheGeometry` validates the result. The command line makes
its flags and their defaults from this class.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from snapexport.contract.exclusions import require_compatible, resolved
from snapexport.contract.geometry import POLICIES, CacheGeometry, Policy
from snapexport.contract.graph_options import CORE_FIELDS, GraphOptions, require_one_of
from snapexport.contract.manifest import Quantization
from snapexport.contract.model_facts import ModelFacts
from snapexport.contract.policies import (
    BUDGETS,
    PRESET_DEFAULTS,
    PRESETS,
    VOTE_FIELDS,
    default_pool_kernel,
    default_ring,
    short_ring,
    topk_per_layer,
)
from snapexport.contract.slots import LayerGeometry, Slots
from snapexport.contract.targets import TARGETS, Target, capabilities
from snapexport.contract.vote import DEFAULT_L_OBS, Vote, Voter
from snapexport.errors import UserError, flag_of, require_fields
from snapexport.files.dtypes import DTYPES, CacheDType, DType
from snapexport.graphs.functions.vote import DEFAULTS, STAGES
from snapexport.methods import table

WeightsFlag = Literal["keep", "dequantize", "int8", "int4", "fp8"]
WEIGHTS_FLAGS: tuple[WeightsFlag, ...] = get_args(WeightsFlag)

DEFAULT_COMPRESSION = 4
"""Without --kv-budget, --L-recent or --K a layer gets L_max / 4 cache slots, SnapStream's ratio."""

DEFAULT_L_SINK = 4
SEEN_OF_QUESTION = 10
"""Tokens of a question that the window sees, at least, before the chat template's tail."""

DEFAULT_CHUNK = 512
"""Long enough for a GPU's arithmetic, short enough not to stall running streams."""
CPU_CHUNK = 128
"""The same where only a CPU runs the graphs. Even a prompt of one token costs a whole chunk."""

_STAGES = {stage: tuple(options) for stage, options in STAGES.items()}


def choices(name: str) -> tuple[str, ...]:
    """The values of a flag of the vote."""
    if name == "budget":
        return BUDGETS + tuple(method.budget for method in table.METHODS if method.budget)
    return tuple(table.voters()) if name == "vote_queries" else _STAGES[name]


def _cache() -> Any:
    return field(default=None, metadata={"group": "cache"})


def _choice(name: str) -> Any:
    return field(default=None, metadata={"group": "cache", "choices": choices(name)})


def _advanced(default: Any) -> Any:
    return field(default=default, metadata={"group": "advanced"})


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """Every choice of `snapexport build`. None: derived from others.

    Lengths and budgets are in tokens. graph: resolved for the target and the dtype. A field's
    metadata has the group of its flag, "cache" or "advanced"; the others are what users choose.
    """

    model: str
    out: Path
    L_max: int
    policy: Policy = "snapstream"
    kv_budget: int | None = None
    L_sink: int | None = _cache()
    L_recent: int | None = _cache()
    K: int | None = _cache()
    L_obs: int | None = _cache()
    pool_kernel: int | None = _cache()
    vote: str | None = _choice("vote")
    pool: str | None = _choice("pool")
    softmax: str | None = _choice("softmax")
    group: str | None = _choice("group")
    budget: str | None = _choice("budget")
    vote_queries: str | None = _choice("vote_queries")
    batch: int = 4
    decode_batches: tuple[int, ...] | None = _advanced(None)
    prefill_chunk: int | None = _advanced(None)
    prefill_capacities: tuple[int, ...] = _advanced(())
    dtype: DType = "fp32"
    weights: WeightsFlag | None = None
    adapter: str | None = None
    target: Target = "onnxruntime"
    baseline: bool = False
    verify: bool = False
    tensor_parallel: int = _advanced(1)
    link_weights: bool = _advanced(False)
    longrope: bool = _advanced(False)
    overwrite: bool = False
    graph: GraphOptions = field(default_factory=GraphOptions)
    _shares_by_default: ClassVar[bool]  # of each object, and no flag

    @classmethod
    def of(cls, **flags: Any) -> "BuildOptions":
        """The options of flags, those of graphs and methods among them. Raises UserError."""
        of_graph = {name: flags.pop(name) for name in graph_fields() if name in flags}
        return cls(**flags, graph=table.graph_options(of_graph))

    def __post_init__(self) -> None:
        require_one_of("--policy", self.policy, POLICIES)
        require_one_of("--dtype", self.dtype, DTYPES)
        require_one_of("--target", self.target, tuple(TARGETS))
        for name in VOTE_FIELDS:
            require_one_of(flag_of(name), getattr(self, name), choices(name))
        require_one_of("--weights", self.weights, WEIGHTS_FLAGS)
        require_compatible(self.flags)
        object.__setattr__(self, "_shares_by_default", self.graph.share_weights is None)
        object.__setattr__(self, "graph", self._resolve())
        self._require_numbers()
        if self.policy != "full":
            self._require_one_budget()

    def _require_numbers(self) -> None:
        require_fields(self, batch=1, tensor_parallel=1)
        for slots in self.decode_batches or ():
            if not 1 <= slots <= self.batch:
                raise UserError(
                    f"--decode-batches {slots} is not between 1 and --batch {self.batch}",
                    "a decode graph runs some of the batch slots, or all",
                )

    @property
    def flags(self) -> dict[str, Any]:
        """Every flag by field, as the table of exclusions asks about them."""
        return {**vars(self), **table.flags_of(self.graph)}

    def _resolve(self) -> GraphOptions:
        own_weights = self.quantization and self.graph.share_weights is None
        given = replace(self.graph, share_weights=False) if own_weights else self.graph
        return resolved(given, self.target, self.dtype)

    def _given_cache_flags(self) -> list[str]:
        flags = self.flags
        return [flag_of(name) for name in cache_fields() if flags[name] is not None]

    def _require_one_budget(self) -> None:
        if self.kv_budget is None:
            return
        if self.L_recent is not None and (K := self._value("K", None)) is not None:
            raise UserError(
                "--kv-budget is given together with both --L-recent and --K"
                if K
                else "--kv-budget and --L-recent are given together, and there is no top-k",
                "the budget is the sum of all parts: leave one of them out",
            )
        if self.kv_budget > self.L_max:
            raise UserError(
                f"--kv-budget {self.kv_budget} is more than --L-max {self.L_max}: "
                "nothing would be compressed",
                f"use a budget below {self.L_max}, or --policy full",
            )

    def _value(self, name: str, default: Any) -> Any:
        """The given value, else the preset's, else the default."""
        if (given := getattr(self, name)) is not None:
            return given
        fixed = {**PRESET_DEFAULTS.get(self.policy, {}), **PRESETS[self.policy]}
        return fixed.get(name, default)

    def geometry(
        self, model: ModelFacts, template_tail: int = 0, like: CacheGeometry | None = None
    ) -> CacheGeometry:
        """The cache of `model` under these options. Raises UserError.

        template_tail: tokens between a user's message and the answer in the chat template. like: a
        geometry of the model, from which a method takes what a file of the user's would say.
        """
        require_compatible(self.flags | model.features)
        self.require_positions(model.max_position_embeddings)
        if self.policy == "full":
            layers, cache_of = model.num_hidden_layers, model.cache_of or ()
            steps = table.steps(self.graph)
            return CacheGeometry.full(self.L_max, layers, steps.tokens, cache_of)
        rings = [layer.ring(self.L_max) for layer in model.cached.values()]
        exact = [ring for ring in rings if ring]
        if len(exact) == len(rings):
            return self._only_rings(model, exact)
        layers, cache_of = model.num_hidden_layers, model.cache_of or ()
        geometry = self._compressed_cache(rings, template_tail, layers, cache_of)
        for method in table.METHODS:
            geometry = method.reshape(geometry, self.graph, model, like)
        return geometry

    def require_positions(self, limit: int | None) -> None:
        """Raise UserError for an L_max above a model's position limit; None: it is not known."""
        if limit is not None and self.L_max > limit:
            raise UserError(
                f"--L-max {self.L_max} is above the model's position limit {limit}",
                f"use --L-max {limit} or less: the model has not learned longer positions, "
                "and a RoPE of type 'dynamic' changes there",
            )

    def require_cache(self) -> None:
        """Raise UserError for a cache and chunks that no model could have."""
        full = self.policy == "full"
        self.chunks(CacheGeometry.full(self.L_max, 1) if full else self._compressed_cache())

    def _only_rings(self, model: ModelFacts, rings: Sequence[LayerGeometry]) -> CacheGeometry:
        """All layers have windows: each has an exact ring, and no layer votes."""
        sizes = [ring.L_recent for ring in rings]
        if given := self._given_cache_flags():
            raise UserError(
                f"every layer of the model slides over its last {max(sizes)} "
                f"positions: {given[0]} has nothing to divide",
                f"drop {given[0]}: a ring of that size is exact",
            )
        L_obs = min(DEFAULT_L_OBS, self.L_max, *sizes)
        slots = Slots.of(rings, model.num_hidden_layers, model.cache_of or ())
        return CacheGeometry(self.policy, self.L_max, slots, Vote(L_obs), table.steps(self.graph))

    def _compressed_cache(
        self,
        rings: Sequence[LayerGeometry | None] = (None,),
        template_tail: int = 0,
        layers: int = 1,
        cache_of: tuple[int, ...] = (),
    ) -> CacheGeometry:
        """rings: the exact ones of layers that have such; the others vote."""
        L_sink = self._value("L_sink", DEFAULT_L_SINK)
        L_recent, K = self._ring_and_topk(L_sink)
        given = {type(one) for one in self.graph.methods}
        implied = (one.budget for one in table.METHODS if one.budget and one.options in given)
        budget = self._value("budget", next(implied, BUDGETS[0]))
        voter = self._voter
        room = self.L_max - L_sink - L_recent
        voted = iter(topk_per_layer(budget, K, rings.count(None), room))
        shapes = [ring or LayerGeometry(L_sink, L_recent, next(voted)) for ring in rings]
        slots = Slots.of(shapes, layers, cache_of)
        vote = Vote(
            L_obs=self._value("L_obs", self._window(voter, template_tail, L_recent)),
            pool_kernel=self._value("pool_kernel", voter.pool or default_pool_kernel(K)),
            budget=budget,
            voter=voter,
            **{stage: self._value(stage, default) for stage, default in DEFAULTS.items()},
        )
        return CacheGeometry(self.policy, self.L_max, slots, vote, table.steps(self.graph))

    @property
    def _voter(self) -> Voter:
        """Who votes: by --vote-queries, or by the flags of one of them."""
        implying = (method for method in table.METHODS if method.implies_vote(self.graph))
        implied = {one.name: one for method in implying for one in method.voters}
        name = self._value("vote_queries", None) or next(iter(implied), Voter().name)
        return implied.get(name) or table.voter_of(name)

    def _window(self, voter: Voter, template_tail: int, L_recent: int) -> int:
        """W: long enough to see the end of a question before the template's tail.

        Without a tail no longer than it has to be: more of the text before a question would vote. A
        prefill chunk that is given limits it.
        """
        if voter.default_window is not None:
            return voter.default_window
        if voter.takes_chunk:
            return _or(self.prefill_chunk, self._usual_chunk)
        wanted = template_tail + SEEN_OF_QUESTION if template_tail else DEFAULT_L_OBS
        return max(1, min(wanted, L_recent, self.L_max, _or(self.prefill_chunk, wanted)))

    def _ring_and_topk(self, L_sink: int) -> tuple[int, int]:
        """L_recent and K: the given values, else parts of the budget that the sinks leave."""
        K = self._value("K", None)
        if self.L_recent is not None and K is not None:
            return self.L_recent, K
        budget = _or(self.kv_budget, max(self.L_max // DEFAULT_COMPRESSION, L_sink + 2))
        self._require_slots(budget, L_sink, K)
        free = budget - L_sink
        if self.L_recent is not None:
            return self.L_recent, free - self.L_recent
        longest = short_ring(self.L_max) if self._voter.short_ring else free
        topk = _or(K, free - min(default_ring(free), longest))
        return free - topk, topk

    def _require_slots(self, budget: int, L_sink: int, K: int | None) -> None:
        """Refuse a budget without a slot for each part that is given, and one for the ring."""
        least = L_sink + _or(self.L_recent, 1) + (K or 0)
        if budget >= least:
            return
        by_default = " (the default, a quarter of L_max)" if self.kv_budget is None else ""
        ring = "a ring of at least 1" if self.L_recent is None else f"a ring of {self.L_recent}"
        parts = [f"{L_sink} sinks", ring, *([f"{K} kept positions"] if K else [])]
        raise UserError(
            f"--kv-budget {budget}{by_default} is below {least}, the sum of {' and '.join(parts)}",
            f"use --kv-budget {least} or more, or lower --L-sink, --L-recent or --K",
        )

    @property
    def stored_cache_dtype(self) -> CacheDType:
        """The element type of compressed caches."""
        return self.graph.cache_dtype or self.dtype

    @property
    def smaller_batches(self) -> list[int]:
        """Batch slots of each decode graph for fewer than all."""
        if self.decode_batches is not None:
            return sorted(set(self.decode_batches) - {self.batch})
        if self.graph.data_parallel_attention:  # no rank is idle in a step
            ranks = self.tensor_parallel
            return [ranks * slots for slots in _powers_of_4(self.batch // ranks)]
        # ONNX Runtime rearranges 4-bit weights; there one more copy is worth its memory.
        if self.copies_weights:
            return []
        return _powers_of_4(self.batch)[: 1 if self.holds_integers else None]

    @property
    def copies_weights(self) -> bool:
        """Whether each further graph holds a copy of all weights that are not integers.

        ONNX Runtime converts 16-bit weights. All its graphs read one copy of fp32 weights in place.
        """
        copies = capabilities(self.target).weights_per_graph or self.dtype != "fp32"
        return copies and not self.graph.share_weights

    def keeping(self) -> "BuildOptions":
        """The same with a checkpoint's integers. Raises UserError if other flags forbid it."""
        graph = replace(self.graph, share_weights=None) if self._shares_by_default else self.graph
        return replace(self, weights="keep", graph=graph)

    @property
    def quantization(self) -> Quantization | None:
        """The form of the weights, as the manifest has it."""
        return None if self.weights == "dequantize" else self.weights

    @property
    def holds_integers(self) -> bool:
        """Whether some weights are stored as integers."""
        return self.weights in ("keep", "int8", "int4")

    def chunk(self, geometry: CacheGeometry) -> int:
        """C, the tokens of a prefill step. L_max means the single-shot layout."""
        least = geometry.vote.L_obs if geometry.compresses else 1
        chunk = _or(self.prefill_chunk, max(least, self._usual_chunk))
        if not least <= chunk <= self.L_max:
            raise UserError(
                f"--prefill-chunk {chunk} is not between {least} and {self.L_max} (--L-max)",
                f"use a value in between, such as {max(least, min(DEFAULT_CHUNK, self.L_max))}",
            )
        require_compatible(self.flags | geometry.chunk_facts(chunk))
        self.graph.require_chunk(chunk, self.L_max)
        return chunk

    def chunks(self, geometry: CacheGeometry) -> tuple[int, ...]:
        """Tokens of the chunks of all prefill graphs, ascending; C is the last."""
        copies = self.copies_weights or self.holds_integers
        chunk = self.chunk(geometry)
        return table.chunks(self.graph, geometry, chunk, copies_weights=copies)

    @property
    def _usual_chunk(self) -> int:
        return max(1, min(usual_chunk(self.target, self.dtype), self.L_max // 2))


def usual_chunk(target: Target, dtype: DType) -> int:
    """Tokens of a prefill step of long prompts, by what runs the graphs."""
    found = capabilities(target)
    on_gpu = found.runs_on_gpu or dtype in found.cuda_dtypes
    return DEFAULT_CHUNK if on_gpu else CPU_CHUNK


_SIZES = "kv_budget", "L_sink", "L_recent", "K", "L_obs", "pool_kernel"


def graph_fields() -> tuple[str, ...]:
    """The flags that `BuildOptions.graph` holds, those of the methods among them."""
    return (*CORE_FIELDS, *table.option_fields())


def cache_fields() -> tuple[str, ...]:
    """The flags that shape a compressed cache."""
    methods = (one for kind in table.option_classes() for one in fields(kind))
    own = (one.name for one in methods if one.metadata["group"] == "cache")
    return (*_SIZES, *VOTE_FIELDS, *own)


def _or(given: int | None, default: int) -> int:
    return default if given is None else given


def _powers_of_4(limit: int) -> list[int]:
    """1, 4, 16 ... below the limit, so that a step runs at most 4 times the batch slots in use."""
    return [4**n for n in range(limit.bit_length()) if 4**n < limit]
