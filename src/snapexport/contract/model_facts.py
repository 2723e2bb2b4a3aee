"""Facts of a checkpoint that builds and runtimes need: its layers' heads, latents and states."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, Self

from annotated_types import Ge
from pydantic import (
    NonNegativeInt,
    PositiveInt,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from snapexport.contract.engines import Strict, Word
from snapexport.contract.slots import LayerGeometry, value_at
from snapexport.contract.targets import FUSED_WIDTH


class StateSizes(Strict):
    """A layer's state of all positions; its size does not grow with them.

    conv: channels, and the positions that a convolution still reads, k - 1; None: no convolution.
    matrix: heads H, dk and dv of [H,dk,dv], float32; None: none.
    """

    conv: tuple[PositiveInt, PositiveInt] | None = None
    matrix: tuple[PositiveInt, PositiveInt, PositiveInt] | None = None


@dataclass(frozen=True)
class LatentSizes:
    """Widths of c_kv (r), k_rope (d), and of a head's key without RoPE (n) and value (v)."""

    rank: int
    rope: int
    nope: int
    value: int

    @property
    def head(self) -> int:
        """Width of a head's query and expanded key."""
        return self.nope + self.rope

    def expands(self, rows: int) -> bool:
        """Whether the expanded form needs fewer products for `rows` tokens.

        For each position and head: rows (2r + d) absorbed, r (n + v) + rows (n + d + v) expanded.
        So decode and small chunks are absorbed, and chunks of more than r (n + v) / (2r - n - v)
        rows are expanded: 171 rows for DeepSeek. In ONNX Runtime, 16 heads at 8,192 positions, a
        layer's attention took 4.2 ms of CPU time a token in absorbed chunks of 128, 5.9 ms in
        expanded ones, and 5.6 against 2.3 ms in chunks of 512.
        """
        of_absorbed = rows * (2 * self.rank + self.rope)
        return self.rank * (self.nope + self.value) + rows * (self.head + self.value) < of_absorbed


class LayerHeads(NamedTuple):
    """A layer's heads, and the widths of what its cache holds of a position.

    heads: of queries. query_dim: of the queries that score cached keys; latents are scored by the
    widths of key and value together. sinks: whether each head has a learned score beside those of
    the keys (gpt-oss). window: in positions; 0: none. chunk: attention sees
    the positions from the last multiple of it on; 0: all. cache_of: the layer whose cache it reads;
    -1: it does not attend.
    """

    heads: int
    kv_heads: int
    query_dim: int
    key_dim: int
    value_dim: int
    sinks: bool
    window: int
    chunk: int
    cache_of: int

    @property
    def reach(self) -> int:
        """Positions that attention sees at most; 0: all."""
        return self.window or self.chunk

    def ring(self, L_max: int) -> LayerGeometry | None:
        """The exact ring of a layer that sees a window or a chunk; None for others.

        A chunk may be longer than any prompt: its ring is not.
        """
        if self.window:
            # A ring of w cache slots is exact for a window of w positions.
            return LayerGeometry(0, self.window, 0)
        return LayerGeometry(0, min(self.chunk, L_max), 0, chunk=self.chunk) if self.chunk else None

    @property
    def widths(self) -> tuple[int, int]:
        """The widths of a cached key and of a cached value."""
        return self.key_dim, self.value_dim

    @property
    def fuses(self) -> bool:
        """Whether fused kernels take heads of these widths."""
        return self.key_dim == self.value_dim and not self.key_dim % FUSED_WIDTH

    @property
    def widest(self) -> int:
        """The larger one of a query's width and a value's."""
        return max(self.query_dim, self.value_dim)

    @property
    def position_values(self) -> int:
        """Numbers that the cache holds for one position."""
        return self.kv_heads * sum(self.widths)

    @property
    def group(self) -> int:
        """Query heads of a KV head."""
        return self.heads // self.kv_heads


Counts = PositiveInt | tuple[PositiveInt, ...]


class ModelFacts(Strict):
    """Facts of the checkpoint that a runtime needs, by the names of config.json.

    Facts of heads are one value for all layers, or one for each: `layer` gives those of a layer.
    value_head_dim: of values; None: head_dim, which is then the width of both. cache_of: the layer
    whose cache each layer reads, its own or an earlier one's; -1: it does not attend, and its facts
    of heads are those of a layer that does; None: each its own. states: the recurrent states of
    each layer, if it has some; None: no layer has.
    sliding_window: each layer's window in positions; 0: none. attention_chunk_size: of each layer,
    which attends to the positions from the last multiple of it on; 0: to all; None: all layers do.
    kv_lora_rank: 0 unless attention is
    latent (MLA). Then a cache holds one KV head, `.key` the latents, `.value` their RoPE part,
    head_dim is the width of both, and qk_nope_head_dim and v_head_dim are not 0.
    attention_sinks: whether each head has a learned score beside those of the keys (gpt-oss).
    num_experts: of a layer with experts (MoE); 0: none. longrope: which of RoPE's two sets of
    frequencies holds for every sequence; None: there is one.
    """

    architecture: Word
    num_hidden_layers: PositiveInt
    num_attention_heads: Counts
    num_key_value_heads: Counts
    head_dim: Counts
    value_head_dim: Counts | None = None
    kv_lora_rank: NonNegativeInt
    qk_nope_head_dim: NonNegativeInt
    v_head_dim: NonNegativeInt
    vocab_size: PositiveInt
    max_position_embeddings: PositiveInt
    sliding_window: list[NonNegativeInt]
    attention_chunk_size: tuple[NonNegativeInt, ...] | None = None
    attention_sinks: bool | tuple[bool, ...]
    cache_of: tuple[Annotated[int, Ge(-1)], ...] | None = None
    states: tuple[StateSizes | None, ...] | None = None
    num_experts: NonNegativeInt
    eos_token_id: list[int]
    longrope: Literal["long", "short"] | None = None

    @model_validator(mode="after")
    def _has_values_of_each_layer(self) -> Self:
        for name, column in vars(self).items():
            values = len(column) if isinstance(column, tuple) else self.num_hidden_layers
            if values != self.num_hidden_layers:
                raise ValueError(f"{name} has {values} values for {self.num_hidden_layers} layers")
        return self

    @model_serializer(mode="wrap")
    def _without_absent(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in handler(self).items() if value is not None}

    def layer(self, index: int) -> LayerHeads:
        """The heads of a layer."""
        width, latent = value_at(self.head_dim, index), self.kv_lora_rank
        values = value_at(self.value_head_dim or self.head_dim, index)
        return LayerHeads(
            heads=value_at(self.num_attention_heads, index),
            kv_heads=value_at(self.num_key_value_heads, index),
            query_dim=width,
            key_dim=latent or width,
            value_dim=values - latent,
            sinks=value_at(self.attention_sinks, index),
            window=self.sliding_window[index],
            chunk=self.attention_chunk_size[index] if self.attention_chunk_size else 0,
            cache_of=self.cache_of[index] if self.cache_of else index,
        )

    @property
    def layers(self) -> tuple[LayerHeads, ...]:
        """The heads of each layer."""
        return tuple(map(self.layer, range(self.num_hidden_layers)))

    @property
    def cached(self) -> dict[int, LayerHeads]:
        """The heads of each layer that has a cache of its own."""
        return {n: layer for n, layer in enumerate(self.layers) if layer.cache_of == n}

    @property
    def stateful(self) -> dict[int, StateSizes]:
        """The states of each layer that has some."""
        return {n: one for n, one in enumerate(self.states or ()) if one}

    @property
    def kv_heads(self) -> tuple[int, ...]:
        """KV heads of each layer."""
        return tuple(layer.kv_heads for layer in self.layers)

    @property
    def position_values(self) -> int:
        """Numbers that all caches hold for one position."""
        return sum(layer.position_values for layer in self.cached.values())

    @property
    def features(self) -> dict[str, bool]:
        """Facts of the model for the table of exclusions."""
        layers, latent = self.layers, self.latent is not None
        kinds = {(layer.heads, layer.kv_heads, *layer.widths) for layer in layers}
        differ = {
            "uneven_heads": len(kinds) > 1,
            "unequal_widths": not latent and any(len({*layer.widths}) > 1 for layer in layers),
            "shared_caches": any(one.cache_of not in (-1, n) for n, one in enumerate(layers)),
            "states": bool(self.stateful),
        }
        chunked = any(layer.chunk for layer in layers)
        irregular = chunked or any(differ.values())
        unfused = not latent and not all(layer.fuses for layer in layers)
        others = {"latent": latent, "chunked": chunked, "unfused_widths": unfused}
        return differ | others | {"irregular": irregular}

    @property
    def latent(self) -> LatentSizes | None:
        """The sizes of latent attention, if it is that."""
        if not self.kv_lora_rank:
            return None
        rank, rope = self.kv_lora_rank, self.layer(0).value_dim
        return LatentSizes(rank, rope, self.qk_nope_head_dim, self.v_head_dim)

    def cut(self, ranks: int) -> "ModelFacts":
        """A rank's facts: its heads. Every rank has the latents of all heads."""
        changed = {"num_attention_heads": _share(self.num_attention_heads, ranks)}
        if not self.kv_lora_rank:
            changed["num_key_value_heads"] = _share(self.num_key_value_heads, ranks)
        return self.model_copy(update=changed)


def _share(column: Counts, ranks: int) -> Counts:
    if isinstance(column, tuple):
        return tuple(count // ranks for count in column)
    return column // ranks
