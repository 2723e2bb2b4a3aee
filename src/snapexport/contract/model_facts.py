"""Facts of a checkpoint that builds and runtimes need."""

from typing import Any, Self

from pydantic import (
    NonNegativeInt,
    PositiveInt,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from snapexport.contract.columns import value_at
from snapexport.contract.engines import Strict, Word
from snapexport.contract.latents import LatentSizes
from snapexport.contract.layer_heads import LayerHeads

Counts = PositiveInt | tuple[PositiveInt, ...]


class ModelFacts(Strict):
    """Facts of the checkpoint that a runtime needs, by the names of config.json.

    Facts of heads are one value for all layers, or one for each: `layer` gives those of a layer.
    value_head_dim: of values; None: head_dim, which is then the width of both. cache_of: the layer
    whose cache each layer reads, its own or an earlier one's; None: each its own.
    sliding_window: each layer's window in positions; 0: none. kv_lora_rank: 0 unless attention is
    latent (MLA). Then a cache holds one KV head, `.key` the latents, `.value` their RoPE part,
    head_dim is the width of both, and qk_nope_head_dim and v_head_dim are not 0.
    attention_sinks: whether each head has a learned score beside those of the keys (gpt-oss).
    num_experts: of a layer with experts (MoE); 0: none.
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
    attention_sinks: bool | tuple[bool, ...]
    cache_of: tuple[NonNegativeInt, ...] | None = None
    num_experts: NonNegativeInt
    eos_token_id: list[int]

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
            cache_of=self.cache_of[index] if self.cache_of else index,
        )

    @property
    def layers(self) -> tuple[LayerHeads, ...]:
        """The heads of each layer."""
        return tuple(map(self.layer, range(self.num_hidden_layers)))

    @property
    def kv_heads(self) -> tuple[int, ...]:
        """KV heads of each layer."""
        return tuple(layer.kv_heads for layer in self.layers)

    @property
    def position_values(self) -> int:
        """Numbers that all caches hold for one position."""
        layers = enumerate(self.layers)
        return sum(one.position_values for index, one in layers if one.cache_of == index)

    @property
    def features(self) -> dict[str, bool]:
        """What the table of exclusions asks about a model."""
        layers, latent = self.layers, self.latent is not None
        return {
            "latent": latent,
            "uneven_heads": len({(layer.heads, layer.kv_heads, *layer.widths) for layer in layers})
            > 1,
            "unequal_widths": not latent
            and any(layer.key_dim != layer.value_dim for layer in layers),
            "shared_caches": any(one.cache_of != index for index, one in enumerate(layers)),
        }

    @property
    def latent(self) -> LatentSizes | None:
        """The sizes of latent attention, if it is that."""
        if not self.kv_lora_rank:
            return None
        rank, rope = self.kv_lora_rank, self.layer(0).value_dim
        return LatentSizes(rank, rope, self.qk_nope_head_dim, self.v_head_dim)

    def cut(self, ranks: int) -> "ModelFacts":
        """A rank's facts: its heads. Every rank has the latents of all heads."""
        changed = {"num_attention_heads": _shared(self.num_attention_heads, ranks)}
        if not self.kv_lora_rank:
            changed["num_key_value_heads"] = _shared(self.num_key_value_heads, ranks)
        return self.model_copy(update=changed)


def _shared(column: Counts, ranks: int) -> Counts:
    if isinstance(column, tuple):
        return tuple(count // ranks for count in column)
    return column // ranks
