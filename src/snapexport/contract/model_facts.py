"""Facts of a checkpoint that builds and runtimes need."""

from pydantic import NonNegativeInt, PositiveInt

from snapexport.contract.engines import Strict, Word
from snapexport.contract.latents import LatentSizes


class ModelFacts(Strict):
    """Facts of the checkpoint that a runtime needs, by the names of config.json.

    sliding_window: each layer's window in positions; 0: none. kv_lora_rank: 0 unless attention is
    latent (MLA). Then a cache holds one KV head, `.key` the latents, `.value` their RoPE part,
    head_dim is the width of both, and qk_nope_head_dim and v_head_dim are not 0.
    attention_sinks: whether each head has a learned score beside those of the keys (gpt-oss).
    num_experts: of a layer with experts (MoE); 0: none.
    """

    architecture: Word
    num_hidden_layers: PositiveInt
    num_attention_heads: PositiveInt
    num_key_value_heads: PositiveInt
    head_dim: PositiveInt
    kv_lora_rank: NonNegativeInt
    qk_nope_head_dim: NonNegativeInt
    v_head_dim: NonNegativeInt
    vocab_size: PositiveInt
    max_position_embeddings: PositiveInt
    sliding_window: list[NonNegativeInt]
    attention_sinks: bool
    num_experts: NonNegativeInt
    eos_token_id: list[int]

    @property
    def latent(self) -> LatentSizes | None:
        """The sizes of latent attention, if it is that."""
        if not self.kv_lora_rank:
            return None
        rank, rope = self.kv_lora_rank, self.head_dim - self.kv_lora_rank
        return LatentSizes(rank, rope, self.qk_nope_head_dim, self.v_head_dim)

    def cut(self, ranks: int) -> "ModelFacts":
        """A rank's facts: its heads. Every rank has the latents of all heads."""
        changed = {"num_attention_heads": self.num_attention_heads // ranks}
        if not self.kv_lora_rank:
            changed["num_key_value_heads"] = self.num_key_value_heads // ranks
        return self.model_copy(update=changed)

    @property
    def key_dim(self) -> int:
        """Width of a cached key."""
        return self.kv_lora_rank or self.head_dim

    @property
    def value_dim(self) -> int:
        """Width of a cached value."""
        return self.head_dim - self.kv_lora_rank

    @property
    def position_values(self) -> int:
        """Numbers that a layer's cache holds for one position."""
        return self.num_key_value_heads * (self.key_dim + self.value_dim)
