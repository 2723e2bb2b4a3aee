"""Facts of a checkpoint that builds and runtimes need."""

from snapexport.contract.engines import Strict
from snapexport.contract.latents import LatentSizes


class ModelFacts(Strict):
    """Facts of the checkpoint that a runtime needs, by the names of config.json.

    sliding_window: each layer's window in positions; 0: none. kv_lora_rank: 0 unless attention is
    latent (MLA). Then a cache holds one KV head, `.key` the latents, `.value` their RoPE part,
    head_dim is the width of both, and qk_nope_head_dim and v_head_dim are not 0.
    attention_sinks: whether each head has a learned score beside those of the keys (gpt-oss).
    num_experts: of a layer with experts (MoE); 0: none.
    """

    architecture: str
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    v_head_dim: int
    vocab_size: int
    max_position_embeddings: int
    sliding_window: list[int]
    attention_sinks: bool
    num_experts: int
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
