"""The shape of the compressed cache, and the arithmetic of its slots.

Positions are 0-based. A layer has S = L_sink + L_recent + K cache slots:

    [0, L_sink)                    the first positions (StreamingLLM's attention sinks)
    [L_sink, L_sink + L_recent)    a ring of the newest positions
    [L_sink + L_recent, S)         the prompt positions that SnapKV's vote kept, ascending

The valid slots are always a contiguous prefix, so no mask is needed. The full cache is the geometry
L_sink = L_max, L_recent = K = 0.

A step of q > 1 tokens may have to forget some of them. So the ring then has spare slots, and the
graphs are told which position each cache slot holds. Knows no model and no graph.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from snapexport.contract.head_groups import CacheHeads, HeadGroups, caches_of, require_groups
from snapexport.errors import UserError

Policy = Literal["snapstream", "streaming", "sage", "snapkv", "full"]
POLICIES: tuple[Policy, ...] = get_args(Policy)

DEFAULT_L_OBS = 8
"""KV-Compress found 8 best; SnapKV uses 32."""

DEFAULT_POOL_KERNEL = 31
"""31 spans an answer: 7 keeps only three tokens after the one that the window's queries attend to,
and a tokenizer may spell a number digit by digit (docs/quality.md)."""

LEAST_RING = 18
"""A default ring is no shorter: with 14 slots running text loses more than by a ring alone
(docs/quality.md)."""

PYRAMID_BETA = 20
"""PyramidKV's beta: the last layer keeps about K / 20 positions (arXiv:2406.02069)."""

BUDGETS = ("uniform", "pyramid", "heads")
"""Rules that share K: equally, among layers, or among the KV heads of each layer."""

VOTE_QUERIES = ("prompt", "pseudo", "repeat")
"""Whose queries vote: the last W prompt tokens', those of W pseudo tokens, which the model writes
after the prompt, or those of the whole prompt, which is repeated W tokens at a time. What comes
after the prompt is forgotten."""

MOST_TOKENS_PER_STEP = 64

VOTING_ROWS = 64
"""Repeated tokens whose scores [H,VOTING_ROWS,T] exist at the same time: 1 GiB for 32 heads and
131,072 positions."""

PerLayer = int | tuple[int, ...]
"""One value for all layers, or one for each."""


@dataclass(frozen=True, slots=True)
class LayerGeometry:
    """The cache slots of one layer, or of a group of its KV heads: of each head as many.

    spare: ring slots beyond L_recent, 2 * (q - 1) for steps of q tokens. Such a step writes q slots
    in a row, so it skips up to q - 1 at the ring's end. And it overwrites up to q - 1 positions
    that its own first token still sees.
    """

    L_sink: int
    L_recent: int
    K: int
    spare: int = 0

    @property
    def ring_slots(self) -> int:
        """Cache slots of the ring. A step sees only its newest L_recent positions."""
        return self.L_recent + self.spare

    @property
    def cache_slots(self) -> int:
        """S, the cache slots of a KV head."""
        return self.L_sink + self.ring_slots + self.K

    def eligible(self, prompt_length: int) -> int:
        """Prompt positions that neither the sinks nor the ring hold after prefill."""
        return max(0, prompt_length - self.L_sink - self.L_recent)

    def kept(self, prompt_length: int) -> int:
        """How many eligible positions the vote keeps."""
        return min(self.eligible(prompt_length), self.K)

    def cache_slot(self, position: int) -> int:
        """The cache slot that prefill, and decode without spare slots, writes `position` to."""
        if position < self.L_sink or self.L_recent == 0:
            return position
        return self.L_sink + (position - self.L_sink) % self.ring_slots

    def valid(self, position: int, prompt_length: int) -> int:
        """Number of valid cache slots of the token at `position`: the attended length V(p)."""
        return min(position + 1, self.L_sink + self.L_recent) + self.kept(prompt_length)

    def source_positions(self, prompt_length: int) -> list[int]:
        """The position in each sink and ring slot after the compress step; -1 in an empty slot."""
        newest = prompt_length - 1
        oldest = max(self.L_sink, prompt_length - self.L_recent)
        sinks = [p if p <= newest else -1 for p in range(self.L_sink)]
        ring = [newest - (newest - p) % self.ring_slots for p in self._ring()]
        return sinks + [p if p >= oldest else -1 for p in ring]

    def _ring(self) -> range:
        return range(self.L_sink, self.L_sink + self.ring_slots)


@dataclass(frozen=True, slots=True)
class CacheGeometry:
    """Geometry of all caches: one for each layer, or for each group of its KV heads. Raises
    UserError for invalid values.

    L_max: longest prompt, tokens. L_obs: W, the number of last prompt tokens whose queries vote
    (SnapKV). pool_kernel: P, the width of the pool over the votes (odd). vote, pool, softmax,
    group: the vote's options by name. vote_queries: whose queries vote, of VOTE_QUERIES. budget:
    the rule that shared K. tokens_per_step: q, the most tokens of a batch slot that a decode step
    takes. head_groups: the KV heads of each cache. num_layers: of the model; with head_groups the
    number of caches, of which L_sink, L_recent and K have a value each.
    """

    policy: Policy
    L_max: int
    num_layers: int
    L_sink: PerLayer
    L_recent: PerLayer
    K: PerLayer
    L_obs: int = DEFAULT_L_OBS
    pool_kernel: int = DEFAULT_POOL_KERNEL
    vote: str = "sum-squares"
    pool: str = "avg"
    softmax: str = "causal"
    group: str = "mean"
    budget: str = "uniform"
    vote_queries: str = "prompt"
    tokens_per_step: int = 1
    head_groups: HeadGroups = ()

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise UserError(f"no policy '{self.policy}'", f"choose from {', '.join(POLICIES)}")
        _require_at_least("--L-max", self.L_max, 1)
        self._validate_tokens_per_step()
        for flag, value in self._per_layer().items():
            _require_layers(flag, value, self.num_layers)
        require_groups(self.head_groups, self.num_layers)
        if self.policy != "full":
            self._validate_window()
            self._validate_topk()
        self._validate_queries()

    def _per_layer(self) -> dict[str, PerLayer]:
        return {"--L-sink": self.L_sink, "--L-recent": self.L_recent, "--K": self.K}

    def _validate_tokens_per_step(self) -> None:
        _require_at_least("--tokens-per-step", self.tokens_per_step, 1)
        if self.tokens_per_step > MOST_TOKENS_PER_STEP:
            raise UserError(
                f"--tokens-per-step {self.tokens_per_step} is above {MOST_TOKENS_PER_STEP}",
                "use 4 to 8: drafts are rarely right for longer",
            )

    def _validate_window(self) -> None:
        _require_at_least("--L-obs", self.L_obs, 1)
        _require_at_least("--pool-kernel", self.pool_kernel, 1)
        if self.pool_kernel % 2 == 0:
            raise UserError(
                f"--pool-kernel {self.pool_kernel} is even: its window would have no middle",
                f"use --pool-kernel {self.pool_kernel + 1}",
            )
        if self.L_obs > self.L_max:
            raise UserError(
                f"--L-obs {self.L_obs} is more than the {self.L_max} tokens of the longest prompt",
                f"use --L-obs {self.L_max} or less",
            )
        rings = [layer.L_recent for layer in self.layers if layer.K]
        recent = min(rings, default=self.L_obs)
        if self.L_obs > recent and not self.repeats:
            raise UserError(
                f"--L-obs {self.L_obs} is larger than --L-recent {recent}: "
                "the observation window must lie inside the ring",
                f"use --L-obs {max(1, recent)} or less, or --L-recent {self.L_obs} or more",
            )

    def _validate_topk(self) -> None:
        most = max(layer.K for layer in self.layers)
        if most > self.L_max:
            raise UserError(
                f"--K {most} is more than the {self.L_max} tokens of the longest prompt",
                f"use --K {self.L_max} or less",
            )

    def _validate_queries(self) -> None:
        if self.vote_queries not in VOTE_QUERIES:
            raise UserError(
                f"no vote queries '{self.vote_queries}'", f"choose from {', '.join(VOTE_QUERIES)}"
            )
        if self.longest_prompt < 1:
            raise UserError(
                f"--vote-queries {self.vote_queries} takes {self.L_obs} tokens behind a prompt, "
                f"for which --L-max {self.L_max} leaves no room",
                f"use --L-max {self.L_obs + 1} or more",
            )

    @property
    def layers(self) -> tuple[LayerGeometry, ...]:
        spare = 2 * (self.tokens_per_step - 1) if self.compresses else 0
        columns = (self._column(value) for value in self._per_layer().values())
        return tuple(
            LayerGeometry(L_sink, L_recent, K, spare)
            for L_sink, L_recent, K in zip(*columns, strict=True)
        )

    @property
    def caches(self) -> tuple[CacheHeads, ...]:
        """The layer and the KV heads of each cache."""
        every = tuple(CacheHeads(layer, layer, None) for layer in range(self.num_layers))
        return tuple(caches_of(self.head_groups)) or every

    def caches_of(self, layer: int) -> tuple[CacheHeads, ...]:
        """The caches of a layer of the model."""
        return tuple(one for one in self.caches if one.layer == layer)

    @property
    def model_layers(self) -> int:
        """Layers of the model."""
        return len(self.head_groups) or self.num_layers

    def heads_held(self, kv_heads: int) -> tuple[int, ...]:
        """The number of KV heads of each cache, of a model with `kv_heads` a layer."""
        return tuple(kv_heads if one.heads is None else len(one.heads) for one in self.caches)

    def head_slots(self, kv_heads: int) -> int:
        """Cache slots of all KV heads of all layers."""
        held = zip(self.heads_held(kv_heads), self.layers, strict=True)
        return sum(heads * layer.cache_slots for heads, layer in held)

    @property
    def widest(self) -> tuple[LayerGeometry, ...]:
        """Of each layer of the model, the cache with the most slots."""
        by_layer: dict[int, list[LayerGeometry]] = {}
        for one, shape in zip(self.caches, self.layers, strict=True):
            by_layer.setdefault(one.layer, []).append(shape)
        return tuple(max(shapes, key=lambda one: one.K) for shapes in by_layer.values())

    def _column(self, value: PerLayer) -> tuple[int, ...]:
        return (value,) * self.num_layers if isinstance(value, int) else value

    @property
    def vote_options(self) -> dict[str, str]:
        """The options of SnapKVSelect, by stage."""
        stages = ("softmax", "vote", "pool", "group")
        return {stage: getattr(self, stage) for stage in stages}

    @property
    def pseudo_tokens(self) -> int:
        """Tokens that are written behind a prompt, so that their queries vote; 0: none."""
        votes = self.vote_queries == "pseudo" and any(layer.K for layer in self.layers)
        return self.L_obs if votes else 0

    @property
    def repeats(self) -> bool:
        """Whether the prompt is fed again, so that the queries of all its tokens vote."""
        return self.vote_queries == "repeat" and any(layer.K for layer in self.layers)

    def block_voters(self, chunk: int) -> int:
        """A prompt's last tokens that vote on each of its blocks: W, and at most half a chunk."""
        return min(self.L_obs, chunk // 2) if any(layer.K for layer in self.layers) else 0

    @property
    def longest_prompt(self) -> int:
        """Tokens of the longest prompt: the full-length cache holds what votes behind it."""
        return self.L_max - (self.L_obs if self.repeats else self.pseudo_tokens)

    @property
    def held_whole(self) -> int:
        """Tokens of the longest prompt of which every vote keeps all."""
        sizes = [layer.L_sink + layer.L_recent + layer.K for layer in self.layers if layer.K]
        return min(sizes, default=self.L_max)

    def require_chunks(self, prefill_chunk: int) -> None:
        """Raise UserError for queries behind a prompt in a single shot, which keeps no prompt
        cache, and for a repetition in other chunks than prefill's."""
        if (self.pseudo_tokens or self.repeats) and self.is_single_shot(prefill_chunk):
            raise UserError(
                f"--vote-queries {self.vote_queries} needs the prompt's full-length cache, but a "
                f"prefill chunk of {prefill_chunk} tokens is a single shot, which has none",
                f"use a --prefill-chunk below {self.L_max}",
            )
        if self.repeats and self.L_obs != prefill_chunk:
            raise UserError(
                f"--vote-queries repeat lets all tokens of a prefill chunk vote: {prefill_chunk}, "
                f"but --L-obs is {self.L_obs}",
                "leave --L-obs out",
            )

    @property
    def draft_ring(self) -> int:
        """Positions that a layer for multi-token prediction sees: the ring's, or all of them."""
        return self.layers[-1].L_recent if self.compresses else self.L_max

    @property
    def compresses(self) -> bool:
        """Whether a compress step follows prefill."""
        return self.policy != "full"

    def is_single_shot(self, prefill_chunk: int) -> bool:
        """Whether a prefill chunk of so many tokens holds the whole padded prompt."""
        return prefill_chunk == self.L_max

    @classmethod
    def full(cls, L_max: int, num_layers: int) -> "CacheGeometry":
        return cls("full", L_max, num_layers, L_sink=L_max, L_recent=0, K=0)

    def as_full(self) -> "CacheGeometry":
        """The uncompressed cache of the same model: the baseline."""
        return CacheGeometry.full(self.L_max, self.model_layers)


def _require_at_least(flag: str, value: int, least: int) -> None:
    if value < least:
        raise UserError(f"{flag} {value} is below {least}", f"use {flag} {least} or more")


def _require_layers(flag: str, value: PerLayer, num_layers: int) -> None:
    values: Sequence[int] = (value,) if isinstance(value, int) else value
    if not isinstance(value, int) and len(values) != num_layers:
        raise UserError(
            f"{flag} has {len(values)} values, the model has {num_layers} layers",
            "give one value, or one for each layer",
        )
    for entry in values:
        _require_at_least(flag, entry, 0)


def default_ring(free: int) -> int:
    """L_recent where neither it nor K is given: half of the `free` cache slots, which sinks leave.

    At least 18, of which the vote still gets a third: running text needs its recent past.
    """
    return max(free - free // 2, min(LEAST_RING, 2 * free // 3))


def default_pool_kernel(K: int) -> int:
    """P where none is given: 31, or about two thirds of K where that is less.

    All positions within P // 2 of a single hit get about the same vote. If K is smaller than P,
    they take all of it; of equal votes the lowest positions win, and may leave out the hit itself.
    """
    return min(DEFAULT_POOL_KERNEL, 2 * K // 3 | 1)


def topk_per_layer(budget: str, K: int, layers: int, room: int) -> tuple[int, ...]:
    """K of each voting layer, of mean K. room: the most eligible positions a prompt can have."""
    return pyramid(K, layers, room) if budget == "pyramid" else (K,) * layers


def pyramid(K: int, layers: int, room: int) -> tuple[int, ...]:
    """PyramidKV: K falls layer by layer in equal steps, from 2K - K // 20 to about K // 20.

    Differs from KVCache-Factory twice. It rounds each step down, so that the sum exceeds the budget
    K * layers by up to 15 %; here the sum is K * layers. And its room depends on each prompt; a
    static graph needs that of the longest prompt.
    """
    if layers == 1 or room <= K:
        return (K,) * layers
    least = K // PYRAMID_BETA
    most = 2 * K - least
    if most > room:
        most, least = room, 2 * K - room
    step = (most - least) / (layers - 1)
    return tuple(round(most - layer * step) for layer in range(layers))


def too_small(capacities: Iterable[int], chunk: int, L_max: int) -> tuple[int, int] | None:
    """The first of the prefill capacities and L_max that is below its bound, and the bound.

    capacities: ascending. The smallest holds a chunk, and each next one twice the one before, so
    that heads move to new places without overlapping their old ones.
    """
    least = 0
    for capacity in (*capacities, L_max):
        if capacity < max(least, chunk):
            return capacity, max(least, chunk)
        least = 2 * capacity
    return None
