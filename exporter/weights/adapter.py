"""Merges a LoRA adapter into a checkpoint's tensors, under the names of transformers' model.

An embedding and a head that share a weight each get their own if only one is changed. No weight is
read here: `adapted.py` adds the products while tensors are read.
"""

import filecmp
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from snapexport.errors import UserError
from snapexport.exporter.model import Decoder
from snapexport.exporter.read import folders
from snapexport.exporter.read.adapter import MERGE, Adapter
from snapexport.exporter.read.checkpoint import Checkpoint
from snapexport.exporter.weights import conversion
from snapexport.exporter.weights.adapted import Adapted, LowRank, Merged
from snapexport.exporter.weights.changes import Change, Changes, other_base
from snapexport.exporter.weights.forms.integers import IntegerWeight, as_integers
from snapexport.exporter.weights.tensor_file import Tensor

_TIED, _TEXT = "tie_word_embeddings", "text_config"
Load = Callable[[Checkpoint], Decoder]


@dataclass(frozen=True)
class Opened:
    """A checkpoint with its adapter, if it has one.

    stored: as it is stored; an adapter has changed only what becomes a part of another tensor.
    checkpoint: by the model's names. places: the parameters that an adapter changed. unties:
    whether only now the head has a weight of its own.
    """

    stored: Checkpoint
    checkpoint: Checkpoint
    decoder: Decoder
    adapter: Adapter | None = None
    places: frozenset[str] = frozenset()
    unties: bool = False

    @property
    def changed(self) -> dict[str, Tensor]:
        """The tensors that the adapter changed, by the model's names."""
        return {name: self.checkpoint.tensors[name] for name in self.places}

    @property
    def integers(self) -> list[tuple[int, int]]:
        """(bits, elements) of what the checkpoint has as integers, and no adapter changes."""
        changed = {id(one.stored) for one in self._changes}
        found = (one for one in self.stored.tensors.values() if isinstance(one, IntegerWeight))
        return [(one.form.bits, prod(one.shape)) for one in found if id(one) not in changed]

    @property
    def _changes(self) -> list[Adapted]:
        both = *self.stored.tensors.values(), *self.checkpoint.tensors.values()
        return [one for one in both if isinstance(one, Adapted)]

    def notes(self, model: str, *, keeps: bool) -> list[str]:
        """The adapter of a build of `model`. keeps: whether integers stay so."""
        if self.adapter is None:
            return []
        base, texts = self.adapter.base, list[str]()
        if base and Path(base).name != Path(model).name:
            texts.append(f"the adapter was trained on {base:.100}")
        many = sum(as_integers(one.stored) is not None for one in self._changes)
        if many and keeps:
            texts.append(
                f"what the adapter changes becomes floats: {many} of the checkpoint's matrices of "
                "integers; --weights int8 or int4 rounds them"
            )
        own, used = (
            folder / folders.CHAT_TEMPLATE
            for folder in (self.adapter.folder, self.stored.directory)
        )
        if own.is_file() and not (used.is_file() and filecmp.cmp(own, used, shallow=False)):
            texts.append(f"not used: {own}; copy it to the model's folder if the adapter needs it")
        return texts


def with_adapter(stored: Checkpoint, decoder: Decoder, adapter: Adapter, load: Load) -> Opened:
    """Merge. load: makes a decoder of a checkpoint. Raises UserError for what can't be merged."""
    changes = Changes(adapter, decoder, stored)
    if changes.split_a_tie:
        stored = _untie(stored, decoder)
        decoder = load(stored)
        if decoder.names.tied:
            raise UserError(
                f"the adapter changes one of {', '.join(decoder.names.tied)} and the weight that "
                "it always equals in this model",
                MERGE,
            )
    stored = _apply_changes(stored, changes.of_stored, adapter)
    converted = conversion.by_model_names(stored, decoder)
    kept = (text for text in stored.left_out if text not in folders.left_out(adapter.folder))
    notes = (*kept, *changes.left_out)
    return Opened(
        replace(stored, left_out=notes),
        _apply_changes(converted, changes.of_model, adapter),
        decoder,
        adapter,
        frozenset(changes.of_model) | frozenset(changes.stacks),
        changes.split_a_tie,
    )


def _apply_changes(
    checkpoint: Checkpoint, changes: Mapping[str, list[Change]], adapter: Adapter
) -> Checkpoint:
    tensors = dict(checkpoint.tensors)
    for name, listed in changes.items():
        if name not in tensors:
            raise UserError(
                f"the adapter changes {name}, which the checkpoint lacks", other_base(adapter)
            )
        for change in listed:
            _require_shape(name, tensors[name].shape, change, adapter)
            if isinstance(change, LowRank):
                tensors[name] = Merged(tensors[name], change)
            else:
                tensors[name] = Adapted(change)
    return replace(checkpoint, tensors=tensors)


def _require_shape(name: str, shape: tuple[int, ...], change: Change, adapter: Adapter) -> None:
    found = change.shape
    if found == shape:
        return
    hint = other_base(adapter)
    if len(shape) == 2 and found[1:] == shape[1:]:
        hint = (
            f"if it was trained with added tokens, add them to the model: "
            f"model.resize_token_embeddings({found[0]}), model.save_pretrained(FOLDER)"
        )
    raise UserError(
        f"the adapter changes {name} of shape {list(found)}, the model's is {list(shape)}", hint
    )


def _untie(stored: Checkpoint, decoder: Decoder) -> Checkpoint:
    """With a head of its own, equal to the embedding."""
    places = conversion.targets(stored.tensors, decoder)
    own = {place: stored.tensors[name] for name, place in places.items()}
    tensors = dict(stored.tensors)
    for name, source in decoder.names.tied.items():
        for new, of in ((name, source), (source, name)):
            if new not in own:
                tensors[new] = own[of]
    return replace(stored, config=untied_config(stored.config), tensors=tensors)


def untied_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config.json whose model has a head of its own."""
    parts = {n: part for n, part in config.items() if isinstance(part, dict)}
    of_text = {n: part | {_TIED: False} for n, part in parts.items() if _TIED in part or n == _TEXT}
    return {**config, **of_text, _TIED: False}
