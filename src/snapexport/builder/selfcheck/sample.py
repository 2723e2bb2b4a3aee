"""A small decoder of a checkpoint: some of its layers, and some rows of its vocabulary."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from snapexport.builder.selfcheck.sizes import Sizes
from snapexport.builder.selfcheck.small import in_short_windows, picked_tokens, with_few_tokens
from snapexport.exporter.model import Decoder
from snapexport.exporter.model.models import parameters
from snapexport.exporter.read.checkpoint import Checkpoint
from snapexport.exporter.weights import conversion
from snapexport.exporter.weights.arranged import Picked
from snapexport.exporter.weights.tensor_file import Tensor
from snapexport.files.safetensors import TensorSpan


@dataclass(frozen=True)
class Sample:
    """A small decoder with a checkpoint's weights.

    tensors: by the names that graphs have. stored: the same as the checkpoint has them, but for the
    layers' indices, which are places here.
    """

    decoder: Decoder
    sizes: Sizes
    tensors: Mapping[str, Tensor]
    stored: Mapping[str, Tensor]

    def first(self, count: int) -> "Sample":
        """The sample of its first layers alone."""
        return replace(self, decoder=self.decoder.left_with(range(count)))

    def state_dict(self) -> dict[str, torch.Tensor]:
        """What transformers loads. Tensors in files are mapped."""
        return {
            name: conversion.map_span(one)
            if isinstance(one, TensorSpan)
            else conversion.as_torch(one)
            for name, one in self.stored.items()
        }


def sample_of(
    decoder: Decoder,
    places: Sequence[int],
    sizes: Sizes,
    checkpoint: Checkpoint,
    stored: Checkpoint,
) -> Sample:
    """The sample of layers at `places`. stored: the checkpoint as it was read."""
    # Of its few tokens none stands for an image.
    few = in_short_windows(replace(decoder.left_with(places), never_sampled=()), sizes.window)
    index = _Index(few)
    tensors = {own: one for n, one in checkpoint.tensors.items() for own in index.own(n)}
    names = conversion.targets(stored.tensors, decoder)
    kept = {
        place: (name, index.own(target)[number])
        for name, target in names.items()
        for number, place in enumerate(index.moved(name, target))
    }
    small, rows, picked = _with_rows(few, tensors, sizes.vocabulary)
    return Sample(
        small,
        sizes,
        {n: Picked(one, rows) if n in picked else one for n, one in tensors.items()},
        {
            n: Picked(stored.tensors[source], rows) if own in picked else stored.tensors[source]
            for n, (source, own) in kept.items()
        },
    )


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
        """The same, by the name of a checkpoint's tensor that becomes `target`."""
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
    rows = picked_tokens(decoder.config, count)
    small = with_few_tokens(decoder.left_with(range(len(decoder.layers))), len(rows))
    wanted = parameters(small) if rows else {}
    changed = {n: one.shape for n, one in tensors.items() if one.shape != wanted.get(n, one.shape)}
    for name, shape in changed.items():
        if (len(rows), *shape[1:]) != wanted[name]:  # the vocabulary has another place in it
            return decoder, (), set()
    return (small, rows, set(changed)) if rows else (decoder, (), set())
