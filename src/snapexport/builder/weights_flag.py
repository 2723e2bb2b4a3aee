"""Resolves `--weights` by what the checkpoint holds."""

from dataclasses import replace
from math import prod

from snapexport.builder.options import BuildOptions
from snapexport.contract.targets import capabilities
from snapexport.errors import UserError
from snapexport.exporter.read.checkpoint import Checkpoint
from snapexport.exporter.weights.forms import fp8
from snapexport.exporter.weights.forms.integers import IntegerWeight
from snapexport.exporter.weights.readers import read_quantization


def with_weights(options: BuildOptions, checkpoint: Checkpoint) -> BuildOptions:
    """The options with their weights. Raises UserError for weights that the checkpoint lacks.

    Integers of a checkpoint are kept by default, unless other flags forbid it.
    """
    if options.weights == "fp8":
        fp8.require_fp8(checkpoint)
    elif options.weights == "keep" and not _integers(checkpoint):
        return _with_fp8(options, checkpoint)
    elif options.weights is None and capabilities(options.target).keeps(_integers(checkpoint)):
        try:
            return options.keeping()
        except UserError:
            return options
    return options


def _integers(checkpoint: Checkpoint) -> list[tuple[int, int]]:
    """(bits, elements) of what the checkpoint has as integers."""
    found = (one for one in checkpoint.tensors.values() if isinstance(one, IntegerWeight))
    return [(one.form.bits, prod(one.shape)) for one in found]


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
