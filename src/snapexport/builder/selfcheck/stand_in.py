"""A small model in the place of a checkpoint whose layers are too large to be compared.

It has the checkpoint's config but for its sizes, and random weights that transformers saves as such
a checkpoint is published. What it can't show is that the large tensors are joined in the same
order: of those, a few parts are compared byte by byte.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from snapexport.builder.resolved import ResolvedBuild
from snapexport.errors import UserError
from snapexport.exporter.model import Decoder, probe
from snapexport.exporter.model.models import model_on_meta
from snapexport.exporter.model.probe.miniature import miniature
from snapexport.exporter.quiet import quiet, without_progress_bars
from snapexport.exporter.read import open_checkpoint
from snapexport.exporter.weights import conversion, derived

_NOISE = 0.3
"""Standard deviation of biases, and of what norms multiply by."""
_QUANTIZATION = "quantization_config"


def drop_quantization(config: Any) -> tuple[Any, Any]:
    """Let transformers read weights as floats. Returns the config, and its text's."""
    both = config, config.get_text_config(decoder=True)
    for one in both:
        if hasattr(one, _QUANTIZATION):
            delattr(one, _QUANTIZATION)
    return both


def stand_in(resolved: ResolvedBuild, directory: Path) -> ResolvedBuild:
    """A build of the small model. directory: an empty one, for its checkpoint."""
    _save(resolved.decoder, directory)
    stored = open_checkpoint(directory)
    longest = resolved.options.L_max if resolved.decoder.longrope else None
    decoder = probe.load_decoder(stored, longrope_for=longest)
    named = conversion.by_model_names(stored, decoder)
    checkpoint = derived.with_derived(named, decoder)
    return replace(resolved, stored=stored, checkpoint=checkpoint, decoder=decoder)


def require_same_parts(resolved: ResolvedBuild, places: Sequence[int]) -> None:
    """Raise UserError for a tensor of these layers that transformers joins in another way."""
    different = conversion.joined_in_another_way(resolved.stored, resolved.decoder, places)
    if different:
        raise UserError(
            f"transformers makes another tensor {different} of the checkpoint",
            "nothing was written, since its graphs would be wrong: this checkpoint can't be built",
        )


def _save(decoder: Decoder, directory: Path) -> None:
    small = replace(decoder, config=miniature(decoder.config))
    model = model_on_meta(small)
    for config in drop_quantization(model.config):
        config.dtype = torch.float32
    generator = torch.Generator().manual_seed(0)
    state = {
        name: _random(name, tuple(tensor.shape), generator)
        for name, tensor in model.state_dict().items()
        if name not in small.names.tied
    }
    with quiet(), without_progress_bars():
        model.save_pretrained(directory, state_dict=state)


def _random(name: str, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    noise = torch.randn(shape, generator=generator)
    if len(shape) > 1:
        return noise.div(shape[-1] ** 0.5)
    return noise.mul(_NOISE).add(int("norm" in name and name.endswith("weight")))
