"""Resolves `--weights` by what the checkpoint holds."""

from dataclasses import replace

from snapexport.build.options import BuildOptions
from snapexport.contract.targets import capabilities
from snapexport.errors import UserError
from snapexport.exporter import fp8
from snapexport.exporter.checkpoint import Checkpoint
from snapexport.exporter.integers import IntegerWeight
from snapexport.exporter.quantized import read_quantization


def with_weights(options: BuildOptions, checkpoint: Checkpoint) -> BuildOptions:
    """The options with their weights. Raises UserError for weights that the checkpoint lacks.

    Integers of a checkpoint are kept unless the flags say otherwise, or forbid it. For a compiler
    they are if some have 4 bits: products with 8 bits take longer there than with 16.
    """
    if options.weights == "fp8":
        fp8.require_fp8(checkpoint)
    elif options.weights == "keep" and not _has_integers(checkpoint):
        return _with_fp8(options, checkpoint)
    elif options.weights is None and _has_integers(checkpoint, _few_enough(options)):
        try:
            return options.keeping()
        except UserError:
            return options
    return options


def _few_enough(options: BuildOptions) -> int:
    return 4 if capabilities(options.target).compiled else 8


def _has_integers(checkpoint: Checkpoint, bits: int = 8) -> bool:
    """Whether some tensors are integers in containers of at most so many bits."""
    integers = (one for one in checkpoint.tensors.values() if isinstance(one, IntegerWeight))
    return any(one.form.bits <= bits for one in integers)


def _with_fp8(options: BuildOptions, checkpoint: Checkpoint) -> BuildOptions:
    """`keep` for a checkpoint without integers: its fp8 weights, if the target takes them."""
    found = read_quantization(checkpoint.config)
    if found and found.kind == "fp8" and capabilities(options.target).fp8_weights:
        return replace(options, weights="fp8")
    raise UserError(
        f"--weights keep stores integers as the checkpoint has them, and {checkpoint.source} has "
        "none that the target takes",
        "leave it out; int8 or int4 round floats to integers",
    )
