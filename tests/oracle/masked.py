"""Computes a build's expected answer: transformers' model, its full cache masked to kept tokens.

Every position's key and value stays in transformers' own cache. During decode an attention function
hides, per layer and KV head, the positions that the compressed cache no longer holds. In sliding
layers it also hides positions outside of the window, in the prompt too. Knows no graph.
"""

from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AttentionInterface, AutoModelForCausalLM, DynamicCache

from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.slots import LayerGeometry

from .on_disk import kept
from .routing import watched
from .vote import gap, is_whole, keep, vote

MASKED = "masked_full_cache"

CLEAR_TOKEN = 5e-4
CLEAR_VOTE = 1e-3
"""Several times the measured effect of fp32 rounding: on logits, and on votes relative to them."""


@dataclass(frozen=True)
class OracleRun:
    """Greedy decoding of one prompt of length L.

    logits [steps + 1, V]: of the prompt's end, and of each step. Per layer: prompt_cache, the
    prompt's keys and values, [Hkv, L, D] each. Per layer, or per head group: topk_positions
    [Hkv, K] ascending (-1: unused), and vote_gaps [Hkv] as `gap` has them. clear_routing: as in
    `routing`.
    """

    prompt: tuple[int, ...]
    logits: NDArray[np.float32]
    clear_routing: bool
    topk_positions: Sequence[NDArray[np.int64]] = ()
    vote_gaps: Sequence[NDArray[np.float64]] = ()
    prompt_cache: Sequence[tuple[NDArray[np.float32], NDArray[np.float32]]] = ()

    @property
    def prefill_logits(self) -> NDArray[np.float32]:
        return self.logits[0]

    @property
    def decode_logits(self) -> NDArray[np.float32]:
        return self.logits[1:]

    @property
    def tokens(self) -> list[int]:
        """[steps + 1]: tokens[i] is fed at position L + i, and is the argmax of logits[i]."""
        found: list[int] = self.logits.argmax(-1).tolist()
        return found

    @property
    def is_clear(self) -> bool:
        """Whether rounding changes no token, no vote (a tie is no doubt) and no expert."""
        if not self.clear_routing:
            return False
        gaps = np.concatenate([[1.0], *self.vote_gaps])
        is_clear_vote = bool(np.all((gaps == 0) | (gaps > CLEAR_VOTE)))
        return is_clear_vote and greedy_gap(self.logits) > CLEAR_TOKEN


def greedy_gap(logits: NDArray[np.float32]) -> float:
    """Smallest distance of the best logit from the second best, over the rows [n, V]."""
    best = np.sort(logits, axis=-1)[:, -2:]
    return float((best[:, 1] - best[:, 0]).min())


@kept
def run(model_dir: Path, prompt: Sequence[int], geometry: CacheGeometry, steps: int) -> OracleRun:
    """Prefill `prompt` in full, vote, then decode `steps` tokens from the kept positions."""
    memory, past = Memory(geometry, len(prompt)), DynamicCache()
    model = load(model_dir, MASKED)
    with watched(model) as routing:
        first = fed(model, past, prompt, memory)
        logits = greedy(model, past, first, steps, memory)
    held = _prompt_cache(past, len(prompt))
    if getattr(model.config, "rope_interleave", False):
        held = _in_pairs(held)
    return OracleRun(tuple(prompt), logits, routing.clear, *memory.votes(), held)


@kept
def run_plain(model_dir: Path, prompt: Sequence[int], steps: int) -> OracleRun:
    """The same with transformers' own eager attention and nothing hidden."""
    model, past = load(model_dir, "eager"), DynamicCache()
    with watched(model) as routing:
        logits = greedy(model, past, fed(model, past, prompt), steps)
    return OracleRun(tuple(prompt), logits, routing.clear)


@cache
def load(model_dir: Path, attention: str) -> Any:
    """The checkpoint, converted to fp32."""
    AttentionInterface.register(MASKED, _attend)
    model = AutoModelForCausalLM.from_pretrained(
        model_dir, dtype=torch.float32, attn_implementation=attention
    )
    return model.eval()


def greedy(
    model: Any,
    past: DynamicCache,
    first: NDArray[np.float32],
    steps: int,
    memory: "Sees | None" = None,
) -> NDArray[np.float32]:
    """Feed the likeliest token `steps` times -> logits [steps + 1, V], which begin with `first`."""
    logits = [first]
    for _ in range(steps):
        logits.append(fed(model, past, [int(logits[-1].argmax())], memory))
    return np.stack(logits)


@torch.no_grad()
def fed(
    model: Any, past: DynamicCache, ids: Sequence[int], memory: "Sees | None" = None
) -> NDArray[np.float32]:
    """Logits [V] after the last of `ids`. `past` grows by all of them.

    past: made without the config, or it would drop positions outside of sliding windows. memory:
    of a model that is loaded with MASKED.
    """
    given = {"past_key_values": past, "logits_to_keep": 1, "use_cache": True}
    token = _memory.set(memory)
    try:
        out = model(torch.tensor([list(ids)]), **given)
    finally:
        _memory.reset(token)
    logits: NDArray[np.float32] = out.logits[0, -1].numpy()
    return logits


def _prompt_cache(
    past: DynamicCache, length: int
) -> list[tuple[NDArray[np.float32], NDArray[np.float32]]]:
    layers: list[Any] = past.layers
    return [(x.keys[0, :, :length].numpy(), x.values[0, :, :length].numpy()) for x in layers]


def _in_pairs(held: list[tuple[NDArray[np.float32], NDArray[np.float32]]]) -> Any:
    """DeepSeek-V3's k_rope in pairs, as RoPE turns it; transformers caches its halves apart."""
    return [
        (c_kv, np.stack(np.split(k_rope, 2, axis=-1), axis=-1).reshape(k_rope.shape))
        for c_kv, k_rope in held
    ]


class Scoring(NamedTuple):
    """How an attention scores keys. one_set: all its heads keep the same positions (MLA)."""

    scaling: float
    softcap: float | None
    one_set: bool


class Sees(Protocol):
    """What a memory is to attention."""

    def visible(self, layer: int, query: Tensor, key: Tensor, scoring: Scoring) -> Tensor: ...


_memory: ContextVar[Sees | None] = ContextVar("memory", default=None)
"""Of the tokens that are fed now. Not every model hands its arguments on to attention."""


class CacheOf(NamedTuple):
    """A cache of a layer. heads: its KV heads, as an index."""

    cache: int
    shape: LayerGeometry
    heads: list[int] | slice

    @property
    def count(self) -> int:
        """Of the heads; 1 for all of them."""
        return 1 if isinstance(self.heads, slice) else len(self.heads)


def caches_of(geometry: CacheGeometry, layer: int) -> list[CacheOf]:
    """The caches that a layer reads: one, or one for each of its head groups."""
    if not geometry.slots.head_groups:
        source = geometry.slots.source(layer)
        return [CacheOf(source, geometry.shapes[source], slice(None))]
    source = geometry.slots.source(layer)
    first = sum(map(len, geometry.slots.head_groups[:source]))
    groups = enumerate(geometry.slots.head_groups[source], start=first)
    return [CacheOf(cache, geometry.layers[cache], list(heads)) for cache, heads in groups]


def voted(geometry: CacheGeometry, layer: int, kept: dict[int, Tensor], every: Tensor) -> Tensor:
    """Bool [Hkv, N]: which of the positions `every` each KV head has kept. kept: by cache."""
    return by_head(
        (one, (kept[one.cache][:, :, None] == every).any(1)) for one in caches_of(geometry, layer)
    )


def rings(geometry: CacheGeometry, layer: int, length: int) -> Tensor:
    """[Hkv, 1], or [1, 1] for all: the newest positions that are held beside the sinks.

    A cache that holds a prompt of `length` whole has no other slots.
    """
    return by_head(
        (one, torch.full((one.count, 1), one.shape.L_recent + one.shape.K * whole))
        for one in caches_of(geometry, layer)
        for whole in [is_whole(one.shape, length)]
    )


def by_head(parts: Iterable[tuple[CacheOf, Tensor]]) -> Tensor:
    """[Hkv, ...] of what each of a layer's caches has for its heads, [heads, ...]."""
    (first, whole), *others = parts
    if isinstance(first.heads, slice):
        return whole
    rows = [
        (head, row)
        for one, part in [(first, whole), *others]
        if not isinstance(one.heads, slice)
        for head, row in zip(one.heads, part, strict=True)
    ]
    return torch.stack([row for _, row in sorted(rows, key=lambda pair: pair[0])])


@dataclass
class Memory:
    """The positions that each layer and KV head of one request may see. kept, gaps: by cache."""

    geometry: CacheGeometry
    prompt_length: int
    kept: dict[int, Tensor] = field(default_factory=dict)
    gaps: dict[int, Tensor] = field(default_factory=dict)

    def visible(self, layer: int, query: Tensor, key: Tensor, scoring: Scoring) -> Tensor:
        """Bool [Hkv, Q, N], or [1, Q, N] for all, for query [H, Q, D] and all keys [Hkv, N, D].

        Latent attention has a key for each query head here, and one KV head in the memory.
        """
        total = key.shape[1]
        if total == self.prompt_length and self.geometry.slots.source(layer) == layer:
            self._remember(layer, query, key, scoring)
        if total == self.prompt_length or self.geometry.policy == "full":
            return causal(query.shape[1], total)[None]
        return self.visible_in_decode(layer, total - 1)[:, None]

    def votes(self) -> tuple[list[NDArray[np.int64]], list[NDArray[np.float64]]]:
        """Positions kept by each cache, and their distances from those dropped."""
        caches = [cache.cache for cache in self.geometry.slots.caches]
        kept = [self.kept[cache].numpy() for cache in caches]
        return kept, [self.gaps[cache].numpy() for cache in caches]

    def visible_in_decode(self, layer: int, position: int) -> Tensor:
        """Bool [Hkv, position + 1]: sinks, the newest others of the ring, and what was kept."""
        (_, shape, _), *_ = caches_of(self.geometry, layer)
        every = torch.arange(position + 1)
        sink = every < shape.L_sink
        recent = ~sink & (every > position - rings(self.geometry, layer, self.prompt_length))
        return sink | recent | voted(self.geometry, layer, self.kept, every)

    def _remember(self, layer: int, query: Tensor, key: Tensor, scoring: Scoring) -> None:
        window = query[:, -self.geometry.vote.L_obs :]
        for index, shape, heads in caches_of(self.geometry, layer):
            scores = vote(window, key, shape, self.geometry, *scoring)[heads]
            self.kept[index] = keep(scores, shape)
            self.gaps[index] = gap(scores, shape.K)


def causal(queries: int, keys: int) -> Tensor:
    """Bool [Q, N]: the last query sees all the keys."""
    return torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)


def in_window(queries: int, keys: int, window: int | None) -> Tensor:
    """Bool [Q, N]: each query sees itself and the window - 1 keys before it, or all of them."""
    reach = keys if window is None else window
    return torch.ones(queries, keys, dtype=torch.bool).triu(keys - queries - reach + 1)


def chunks(config: Any) -> list[int]:
    """Each layer's chunk by config.json (Llama 4); 0: none."""
    types = getattr(config, "layer_types", None) or [""] * config.num_hidden_layers
    return [config.attention_chunk_size if kind == "chunked_attention" else 0 for kind in types]


def in_chunk(queries: int, keys: int, chunk: int) -> Tensor:
    """Bool [Q, N]: each query sees the keys from the last multiple of the chunk on; 0: all."""
    rows = torch.arange(keys - queries, keys)[:, None]
    begun = rows - rows % chunk if chunk else torch.zeros_like(rows)
    return torch.arange(keys) >= begun


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """One request: query [1, H, Q, D], key and value [1, Hkv, N, D] -> [1, Q, H, D]."""
    assert attention_mask is None, "the mask is the memory's alone"
    memory = _memory.get()
    assert memory, "fed without a memory"
    heads, dim = key.shape[1], key.shape[-1]
    scoring = Scoring(scaling, softcap, one_set=hasattr(module, "kv_b_proj"))
    visible = memory.visible(module.layer_idx, query[0], key[0], scoring)
    visible = visible & in_window(query.shape[2], key.shape[2], sliding_window)
    chunk = chunks(module.config)[module.layer_idx]
    visible = visible & in_chunk(query.shape[2], key.shape[2], chunk)
    grouped = query.reshape(heads, -1, query.shape[2], dim)
    scores = grouped @ key[0][:, None].mT * scaling
    if softcap:
        scores = softcap * (scores / softcap).tanh()
    hidden = scores.masked_fill(~visible[:, None], -torch.inf)
    weights = hidden.softmax(-1) if s_aux is None else _beside_sinks(hidden, s_aux)
    mixed = weights @ value[0][:, None]
    return mixed.reshape(*query.shape[:3], -1).transpose(1, 2).contiguous(), None


def _beside_sinks(scores: Tensor, sinks: Tensor) -> Tensor:
    """The softmax of scores [Hkv, G, Q, N] and a learned one for each head, without its share."""
    column = sinks.reshape(*scores.shape[:2], 1, 1).expand(*scores.shape[:3], 1)
    return torch.cat([scores, column], dim=-1).softmax(-1)[..., :-1]
