"""Measures what layers read before a build rounds their weights, where the model can run for it."""

from tokenizers import Tokenizer

from snapexport.builder.progress import Progress
from snapexport.builder.resolved import ResolvedBuild
from snapexport.contract.memory import size, spelled
from snapexport.exporter.weights import inputs, shapes
from snapexport.exporter.weights.forms import choice
from snapexport.exporter.weights.forms.rounding import Inputs
from snapexport.exporter.weights.inputs import TEXT
from snapexport.files.tokenizer_file import TOKENIZER

_LARGEST_LAYER = size("4GiB")
"""In fp32: a layer is in memory while it runs."""


def layer_inputs(resolved: ResolvedBuild, progress: Progress) -> dict[str, Inputs]:
    """By the names of weights; none if nothing is rounded, or the model can't run."""
    if resolved.options.weights not in ("int4", "int8"):
        return {}
    largest = max(shapes.bytes_of_layers(resolved.decoder))
    if largest > _LARGEST_LAYER:
        progress.note(f"rounding by the weights alone: a layer has {spelled(largest)} in fp32")
        return {}
    progress.stage("measuring what layers read")
    try:
        tensors, tokens = resolved.checkpoint.tensors, _tokens(resolved)
        return inputs.measure(tensors, resolved.decoder, tokens, choice.BLOCK)
    except Exception as error:  # of a model's own code: weights can be rounded without
        progress.note(f"rounding by the weights alone: {type(error).__name__}: {error!s:.100}")
        return {}


def _tokens(resolved: ResolvedBuild) -> list[int]:
    """Of our text; none without a tokenizer."""
    if (content := resolved.texts.get(TOKENIZER)) is None:
        return []
    tokens: list[int] = Tokenizer.from_buffer(content).encode(TEXT).ids
    return tokens
