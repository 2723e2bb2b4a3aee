"""Checks that a model can be cut for a number of ranks."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from snapexport.contract.exclusions import require_compatible
from snapexport.errors import UserError
from snapexport.exporter.architectures import EXPERTS, architecture_of, experts_of, mlp_types
from snapexport.exporter.checkpoint import Checkpoint

if TYPE_CHECKING:
    from transformers import PretrainedConfig

LARGEST = 1024


def require_ranks(checkpoint: Checkpoint, config: "PretrainedConfig", ranks: int) -> None:
    """Raise UserError for a model that is not cut, or not for this number of ranks."""
    if ranks == 1:
        return
    require_compatible(
        {
            "tensor_parallel": ranks,
            "gguf": bool(checkpoint.gguf),
            "quantized": bool(checkpoint.config.get("quantization_config")),
            "attention_sinks": architecture_of(config).attention_sinks,
            "mlp_bias": getattr(config, "mlp_bias", False),
        }
    )
    for what, count in _counts(config):
        if count % ranks:
            numbers = ", ".join(map(str, possible(config)))
            raise UserError(
                f"--tensor-parallel {ranks}: the model's {count} {what} are no multiple of it",
                f"possible here: {numbers}",
            )


def possible(config: "PretrainedConfig") -> list[int]:
    """The numbers of ranks that a model can be cut for."""
    counts = [count for _, count in _counts(config)]
    return [n for n in range(1, LARGEST + 1) if not any(count % n for count in counts)]


def _counts(config: "PretrainedConfig") -> Iterator[tuple[str, int]]:
    """All that is cut: each rank has an equal part."""
    yield "attention heads", config.num_attention_heads
    if not architecture_of(config).latent:
        yield "KV heads", config.num_key_value_heads
    if set(mlp_types(config)) - {EXPERTS}:
        yield "columns of the MLPs (intermediate_size)", config.intermediate_size
    if experts := experts_of(config):
        yield "columns of the experts (moe_intermediate_size)", experts.width
    yield "tokens of the vocabulary (vocab_size)", config.vocab_size
    yield "columns of the embedding (hidden_size)", config.hidden_size
