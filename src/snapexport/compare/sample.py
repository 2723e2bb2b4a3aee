"""Makes the small decoder that is compared: a few layers, a few tokens, and short windows.

Its weights are the checkpoint's. Where layers are too large, a small model of random weights is
compared in their place, which transformers saves as such a checkpoint is published. It can't show
that the large tensors are joined in the same order: a few parts of those are compared byte by byte.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from snapexport.compare.model import drop_quantization
from snapexport.errors import UserError
from snapexport.exporter.model import Decoder, probe
from snapexport.exporter.model.models import model_on_meta, parameters
from snapexport.exporter.model.probe.miniature import miniature
from snapexport.exporter.quiet import quiet, without_progress_bars
from snapexport.exporter.read import open_checkpoint
from snapexport.exporter.read.checkpoint import Checkpoint
from snapexport.exporter.weights import conversion, derived
from snapexport.exporter.weights.adapted import Adapted
from snapexport.exporter.weights.arranged import Picked
from snapexport.exporter.weights.tensor_file import Tensor
from snapexport.files.safetensors import TensorSpan

_LONGEST = 128
_SEED = 0
_OF_VOCABULARY, _TOKEN = "vocab_size", "_token_id"
_NOISE = 0.3
"""Standard deviation of biases, and of what norms multiply by."""


@dataclass(frozen=True)
class Sizes:
    """The prompt, the caches and the vocabulary in use.

    All follow from L_max, the positions of the full-length cache.
    """

    L_max: int

    @classmethod
    def of(cls, position_limit: int) -> "Sizes":
        """position_limit: the model's longest sequence."""
        return cls(min(_LONGEST, position_limit))

    @property
    def chunk(self) -> int:
        """Tokens of a prefill chunk: a prompt takes four, of which the last overlaps."""
        return self.L_max // 4

    @property
    def prompt(self) -> int:
        return self.L_max * 25 // 32

    @property
    def steps(self) -> int:
        """Tokens that are decoded after the prompt."""
        return max(1, self.L_max // 16)

    @property
    def window(self) -> int:
        """Positions that a sliding layer sees, where the model's own window is wider."""
        return max(2, self.L_max * 3 // 16)

    @property
    def vocabulary(self) -> int:
        return _LONGEST


@dataclass(frozen=True)
class Sample:
    """A small decoder with a checkpoint's weights.

    checkpoint: its tensors by the names that graphs have. stored: the same as the checkpoint has
    them, but for the layers' indices, which are places here.
    """

    decoder: Decoder
    sizes: Sizes
    checkpoint: Checkpoint
    stored: Mapping[str, Tensor]

    def first(self, count: int) -> "Sample":
        """The sample of only its first layers."""
        return replace(self, decoder=self.decoder.left_with(range(count)))

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The tensors that transformers loads. Those in files are mapped."""
        return {
            name: conversion.map_span(one)
            if isinstance(one, TensorSpan)
            else conversion.as_torch(one)
            for name, one in self.stored.items()
        }

    def adapter_tensors(self) -> dict[str, torch.Tensor]:
        """The tensors that an adapter changed, by the names of the decoder's model."""
        return {
            name: conversion.as_torch(one)
            for name, one in self.checkpoint.tensors.items()
            if isinstance(one.stored if isinstance(one, Picked) else one, Adapted)
        }


def sample_of(
    decoder: Decoder,
    places: Sequence[int],
    sizes: Sizes,
    checkpoint: Checkpoint,
    stored: Checkpoint,
) -> Sample:
    """The sample of layers at `places`. stored: the checkpoint as it was read."""
    # None of its few tokens represents an image.
    few = _in_short_windows(replace(decoder.left_with(places), never_sampled=()), sizes.window)
    index = _Index(few)
    tensors = {own: one for n, one in checkpoint.tensors.items() for own in index.own(n)}
    names = conversion.targets(stored.tensors, decoder)
    kept = {
        place: (name, index.own(target)[number])
        for name, target in names.items()
        for number, place in enumerate(index.moved(name, target))
    }
    small, rows, picked = _with_rows(few, tensors, sizes.vocabulary)
    tensors = {n: Picked(one, rows) if n in picked else one for n, one in tensors.items()}
    return Sample(
        small,
        sizes,
        replace(checkpoint, tensors=tensors),
        {
            n: Picked(stored.tensors[source], rows) if own in picked else stored.tensors[source]
            for n, (source, own) in kept.items()
        },
    )


def stand_in(
    decoder: Decoder, L_max: int, directory: Path
) -> tuple[Decoder, Checkpoint, Checkpoint]:
    """A small model in the decoder's place, with its config but for the sizes.

    directory: an empty one, for its checkpoint. Returns its decoder, the checkpoint with the
    tensors that graphs have, and the checkpoint as it was read.
    """
    _save(decoder, directory)
    stored = open_checkpoint(directory)
    small = probe.load_decoder(stored, longrope_for=L_max if decoder.longrope else None)
    return small, derived.with_derived(conversion.by_model_names(stored, small), small), stored


def require_same_parts(stored: Checkpoint, decoder: Decoder, places: Sequence[int]) -> None:
    """Raise UserError for a tensor of these layers that transformers joins in another way."""
    different = conversion.joined_in_another_way(stored, decoder, places)
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
    generator = torch.Generator().manual_seed(_SEED)
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


class _Index:
    """Finds the places of tensors in a decoder that is left with some layers."""

    def __init__(self, decoder: Decoder) -> None:
        self._stem = re.compile(rf"{re.escape(decoder.names.layers)}\.(\d+)\.(.*)")
        self._depth, self._layers = decoder.depth, decoder.names.layers

    def own(self, name: str) -> list[str]:
        """A tensor's names in that decoder: one, or one for each place of its layer."""
        if not (found := self._stem.fullmatch(name)):
            return [name]
        return [f"{self._layers}.{place}.{found[2]}" for place in self._places(int(found[1]))]

    def moved(self, name: str, target: str) -> list[str]:
        """The names there of a checkpoint's tensor that becomes `target`."""
        if not (found := self._stem.fullmatch(target)):
            return [name]
        head, middle, rest = name.partition(f".{found[1]}.")
        assert middle, f"{name} becomes {target}"
        return [f"{head}.{place}.{rest}" for place in self._places(int(found[1]))]

    def _places(self, index: int) -> Iterator[int]:
        return (place for place, found in enumerate(self._depth) if found == index)


def _with_rows(
    decoder: Decoder, tensors: Mapping[str, Tensor], count: int
) -> tuple[Decoder, tuple[int, ...], set[str]]:
    """The decoder with few tokens, their ids in the checkpoint, and the tensors with their rows."""
    rows = _picked_tokens(decoder.config, count)
    small = _with_few_tokens(decoder.left_with(range(len(decoder.layers))), len(rows))
    wanted = parameters(small) if rows else {}
    changed = {n: one.shape for n, one in tensors.items() if one.shape != wanted.get(n, one.shape)}
    for name, shape in changed.items():
        if (len(rows), *shape[1:]) != wanted[name]:  # the vocabulary has another place in it
            return decoder, (), set()
    return (small, rows, set(changed)) if rows else (decoder, (), set())


def _in_short_windows(decoder: Decoder, window: int) -> Decoder:
    """The decoder with windows and chunks of `window` positions, where they are wider.

    In the config too, from which transformers makes its masks. A width that the config has by
    another name stays as it is.
    """
    config: Any = decoder.config
    fields = {"window": "sliding_window", "chunk": "attention_chunk_size"}
    layers = list(decoder.layers)
    for ours, theirs in fields.items():
        width = getattr(config, theirs, None)
        is_seen = any(getattr(layer, ours) == width for layer in layers)
        if is_seen and type(width) is int and width > window:
            setattr(config, theirs, window)
            narrow: dict[str, Any] = {ours: window}
            layers = [
                replace(layer, **narrow) if getattr(layer, ours) == width else layer
                for layer in layers
            ]
    return replace(decoder, layers=tuple(layers))


def _picked_tokens(config: Any, count: int) -> tuple[int, ...]:
    """Some token ids of a config's vocabulary, ascending; none if it has so few."""
    known = min(_sizes(config).values())
    if known <= count:
        return ()
    found = np.random.default_rng(_SEED).choice(known, count, replace=False)
    return tuple(sorted(found.tolist()))


def _with_few_tokens(decoder: Decoder, count: int) -> Decoder:
    """The decoder with a vocabulary of `count` tokens, and none with a meaning of its own."""
    config: Any = decoder.config
    for name, size in _sizes(config).items():
        setattr(config, name, min(size, count))
    for name, value in list(vars(config).items()):
        if name.endswith(_TOKEN) and value is not None:
            setattr(config, name, 0 if type(value) is int else [0])  # some take no None
    return decoder


def _sizes(config: Any) -> Mapping[str, int]:
    """Its vocabularies: some models have a further one, for what they add in each layer."""
    fields = vars(config).items()
    return {n: v for n, v in fields if n.startswith(_OF_VOCABULARY) and type(v) is int}
