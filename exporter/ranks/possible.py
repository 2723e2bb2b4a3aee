"""Checks that a model can be cut for a number of ranks."""

from collections.abc import Iterator
from typing import Any

from snapexport.contract.exclusions import require_compatible
from snapexport.errors import UserError
from snapexport.exporter.architectures import Decoder, is_held
from snapexport.exporter.checkpoint import Checkpoint

LARGEST = 1024


def require_ranks(checkpoint: Checkpoint, decoder: Decoder, ranks: int) -> None:
    """Raise UserError for a model that is not cut, or not for this number of ranks."""
    if ranks == 1:
        return
    require_compatible(
        {
            "tensor_parallel": ranks,
            "other_family": not is_held(decoder.family),
            "gguf": bool(checkpoint.gguf),
            "quantized": bool(checkpoint.config.get("quantization_config")),
            "attention_sinks": decoder.layers[0].sinks,
            "mlp_bias": getattr(decoder.config, "mlp_bias", False),
        }
    )
    for what, count in _counts(decoder):
        if count % ranks:
            numbers = ", ".join(map(str, possible(decoder)))
            raise UserError(
                f"--tensor-parallel {ranks}: the model's {count} {what} are no multiple of it",
                f"possible here: {numbers}",
            )


def possible(decoder: Decoder) -> list[int]:
    """The numbers of ranks that a model can be cut for."""
    counts = [count for _, count in _counts(decoder)]
    return [n for n in range(1, LARGEST + 1) if not any(count % n for count in counts)]


def _counts(decoder: Decoder) -> Iterator[tuple[str, int]]:
    """All that is cut: each rank has an equal part."""
    config: Any = decoder.config
    yield "attention heads", decoder.layers[0].heads
    if not decoder.latent:
        yield "KV heads", decoder.layers[0].kv_heads
    if not all(layer.experts for layer in decoder.layers):
        yield "columns of the MLPs (intermediate_size)", config.intermediate_size
    if experts := decoder.experts:
        yield "columns of the experts (moe_intermediate_size)", experts.width
    yield "tokens of the vocabulary (vocab_size)", config.vocab_size
    yield "columns of the embedding (hidden_size)", config.hidden_size
