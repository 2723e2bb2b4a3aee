"""How many top_tokens for the next token a build's graphs can tell."""

from snapexport.contract.errors import UserError
from snapexport.contract.manifest import ModelFacts, Target

TENSORRT_MOST = 3840
"""Largest K of TensorRT's TopK: ITopKLayer::setK in NvInfer.h (10.15 and 11.1 alike)."""


def require_top_tokens(count: int, target: Target) -> None:
    """Raise UserError for a number that no graph of the target can have. 0: none are asked for."""
    if count < 0:
        raise UserError(
            f"--top-tokens {count} is below 0",
            "use 0 for none, or as many as the largest top-k of your requests",
        )
    if target == "tensorrt" and count > TENSORRT_MOST:
        raise UserError(
            f"--top-tokens {count} is above {TENSORRT_MOST}, the most that TensorRT's TopK gives",
            f"use --top-tokens {TENSORRT_MOST} or less: other requests sample from the logits",
        )


def require_in_vocabulary(count: int, model: ModelFacts) -> None:
    """Raise UserError for more top_tokens than the model has tokens."""
    if count > model.vocab_size:
        raise UserError(
            f"--top-tokens {count} is above the model's vocabulary of {model.vocab_size} tokens",
            "use as many as the largest top-k of your requests",
        )
