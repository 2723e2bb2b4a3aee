"""What is measured: a model's shape, lengths and budgets. `LARGE` is for a GPU, `SMALL` for the
dry run: the same code on the CPU, in seconds."""

from dataclasses import dataclass
from typing import Any

from snapexport.contract.errors import UserError
from snapexport.contract.targets import DType

LLAMA_3_1_8B: dict[str, Any] = {
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rope_parameters": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}
"""As config.json of meta-llama/Llama-3.1-8B has it."""

TINY: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}


_ITEM_BYTES = 2
"""Of fp16 and of bf16."""


@dataclass(frozen=True)
class Setting:
    """shape: of the model, by config.json's names. equal: contexts of the equal-memory table, each
    with a full cache of its own. cache_budget: bytes of all decode slots. room: positions that are
    decoded behind each context. probe: bytes of the copy that shows the bandwidth."""

    shape: dict[str, Any]
    L_max: int
    contexts: tuple[int, ...]
    equal: tuple[int, ...]
    kv_budget: int
    prefill_chunk: int
    cache_budget: int
    dtype: DType
    probe: int
    room: int = 64
    steps: int = 16
    repeat: int = 3

    def __post_init__(self) -> None:
        least = self.slot_bytes(self.kv_budget)
        if self.cache_budget < least:
            raise UserError(
                f"--cache-budget {self.cache_budget} does not hold one slot of SnapStream",
                f"give {least} bytes or more",
            )

    @property
    def position_bytes(self) -> int:
        """Keys and values of one position, all layers."""
        head_dim: int = self.shape["hidden_size"] // self.shape["num_attention_heads"]
        heads: int = self.shape["num_hidden_layers"] * self.shape["num_key_value_heads"]
        return 2 * heads * head_dim * _ITEM_BYTES

    def slot_bytes(self, positions: int) -> int:
        """A decode slot of so many positions."""
        return positions * self.position_bytes

    def slots(self, positions: int) -> int:
        """Decode slots of so many positions that the budget holds."""
        return self.cache_budget // self.slot_bytes(positions)

    @property
    def fitting(self) -> tuple[int, ...]:
        """The contexts of `equal` whose full cache the budget holds once or more."""
        return tuple(context for context in self.equal if self.slots(context))

    def prompt(self, context: int) -> int:
        """Tokens of the prompt: decoding ends at the context."""
        return context - self.room


LARGE = Setting(
    shape=LLAMA_3_1_8B,
    L_max=131072,
    contexts=(1024, 4096, 16384, 32768, 65536, 131072),
    equal=(16384, 32768, 65536, 131072),
    kv_budget=8192,
    prefill_chunk=2048,
    cache_budget=32 << 30,
    dtype="fp16",
    probe=2 << 30,
)
SMALL = Setting(
    shape=TINY,
    L_max=256,
    contexts=(96, 256),
    equal=(256,),
    kv_budget=64,
    prefill_chunk=64,
    cache_budget=128 << 10,
    dtype="fp16",
    probe=16 << 20,
    room=32,
    steps=4,
    repeat=2,
)
