"""Merges a LoRA adapter into a checkpoint's tensors, under the names of transformers' model.

What changes a matrix that becomes a part of a stack, as in adapters for older transformers, changes
the stored one. An embedding and a head that share a weight each get their own if only one is
changed. No weight is read here: `adapted.py` adds the products while tensors are read.
"""

import filecmp
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

from torch import nn

from snapexport.errors import UserError
from snapexport.exporter.model import Decoder
from snapexport.exporter.model.models import model_on_meta
from snapexport.exporter.read import folders
from snapexport.exporter.read.adapter import (
    BIAS,
    EMBEDDING_A,
    EMBEDDING_B,
    MAGNITUDE,
    MERGE,
    A,
    Adapter,
    B,
)
from snapexport.exporter.read.checkpoint import Checkpoint
from snapexport.exporter.weights import conversion
from snapexport.exporter.weights.adapted import Adapted, LowRank, Merged
from snapexport.exporter.weights.forms.integers import IntegerWeight, as_integers
from snapexport.exporter.weights.tensor_file import Tensor
from snapexport.files.safetensors import TensorSpan

_BASE, _TIED, _TEXT = ".base_layer", "tie_word_embeddings", "text_config"
_MODEL = "model."
_CONV1D = "Conv1D"
"""GPT-2's linear layer, whose weight is [K,N]."""
Change = TensorSpan | LowRank
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
        """What the adapter changed, by the model's names."""
        return {name: self.checkpoint.tensors[name] for name in self.places}

    @property
    def integers(self) -> list[tuple[int, int]]:
        """(bits, elements) of what the checkpoint has as integers, and no adapter changes."""
        changed = {id(one.stored) for one in self._changed}
        found = (one for one in self.stored.tensors.values() if isinstance(one, IntegerWeight))
        return [(one.form.bits, prod(one.shape)) for one in found if id(one) not in changed]

    @property
    def _changed(self) -> list[Adapted]:
        both = *self.stored.tensors.values(), *self.checkpoint.tensors.values()
        return [one for one in both if isinstance(one, Adapted)]

    def notes(self, model: str, *, keeps: bool) -> list[str]:
        """What an adapter means for a build of `model`. keeps: whether integers stay so."""
        if self.adapter is None:
            return []
        base, texts = self.adapter.base, list[str]()
        if base and Path(base).name != Path(model).name:
            texts.append(f"the adapter was trained on {base:.100}")
        many = sum(as_integers(one.stored) is not None for one in self._changed)
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
    changes = _Changes(adapter, decoder, stored)
    if changes.split_a_tie:
        stored = _untied(stored, decoder)
        decoder = load(stored)
        if decoder.names.tied:
            raise UserError(
                f"the adapter changes one of {', '.join(decoder.names.tied)} and the weight that "
                "it always equals in this model",
                MERGE,
            )
    stored = _changed(stored, changes.of_stored, adapter)
    converted = conversion.by_model_names(stored, decoder)
    kept = (text for text in stored.left_out if text not in folders.left_out(adapter.folder))
    notes = (*kept, *changes.left_out)
    return Opened(
        replace(stored, left_out=notes),
        _changed(converted, changes.of_model, adapter),
        decoder,
        adapter,
        frozenset(changes.of_model) | frozenset(changes.stacks),
        changes.split_a_tie,
    )


def _changed(
    checkpoint: Checkpoint, changes: Mapping[str, list[Change]], adapter: Adapter
) -> Checkpoint:
    tensors = dict(checkpoint.tensors)
    for name, listed in changes.items():
        if name not in tensors:
            raise UserError(
                f"the adapter changes {name}, which the checkpoint lacks", _other_base(adapter)
            )
        for change in listed:
            _require_shape(name, tensors[name].shape, change, adapter)
            merges = isinstance(change, LowRank)
            tensors[name] = Merged(tensors[name], change) if merges else Adapted(change)
    return replace(checkpoint, tensors=tensors)


def _require_shape(name: str, shape: tuple[int, ...], change: Change, adapter: Adapter) -> None:
    found = change.shape
    if found == shape:
        return
    hint = _other_base(adapter)
    if len(shape) == 2 and found[1:] == shape[1:]:
        hint = (
            f"if it was trained with added tokens, add them to the model: "
            f"model.resize_token_embeddings({found[0]}), model.save_pretrained(FOLDER)"
        )
    raise UserError(
        f"the adapter changes {name} of shape {list(found)}, the model's is {list(shape)}", hint
    )


def _other_base(adapter: Adapter) -> str:
    trained = f", which was trained on {adapter.base:.100}" if adapter.base else ""
    return f"name the model of the adapter as --model{trained}"


def _untied(stored: Checkpoint, decoder: Decoder) -> Checkpoint:
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


@dataclass(frozen=True)
class _Changes:
    """What an adapter changes: parameters of the model, and stored tensors that stacks have."""

    adapter: Adapter
    decoder: Decoder
    stored: Checkpoint
    of_model: dict[str, list[Change]] = field(default_factory=dict)
    of_stored: dict[str, list[Change]] = field(default_factory=dict)
    stacks: set[str] = field(default_factory=set)
    left_out: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        ignored = []
        for name, change in self._listed():
            place, is_part = self._place(name)
            if place and is_part:
                self.of_stored.setdefault(name, []).append(change)
                self.stacks.add(place)
            elif place:
                self.of_model.setdefault(place, []).append(change)
            else:
                ignored.append(name)
        if self.adapter.ties:  # both have the same changes, or only one of them is saved
            for name, source in self.decoder.names.tied.items():
                if (of_other := self.of_model.pop(name, None)) is not None:
                    self.of_model.setdefault(source, of_other)
        if ignored:
            more = f" and {len(ignored) - 1} more" if len(ignored) > 1 else ""
            self.left_out.append(
                f"left out of the adapter, as the build has no such part: {ignored[0]}{more}"
            )

    @property
    def split_a_tie(self) -> bool:
        """Whether a weight is changed under one of its names."""
        tied = self.decoder.names.tied
        both = {*tied, *tied.values()}
        return not self.adapter.ties and not both.isdisjoint(self.of_model)

    def _listed(self) -> Iterator[tuple[str, Change]]:
        """Each change with a parameter's name, those before others that others build on."""
        yield from self.adapter.replaced.items()
        for path, parts in self.adapter.changed.items():
            yield from self._of_module(path, parts)

    def _of_module(
        self, path: str, parts: Mapping[str, TensorSpan]
    ) -> Iterator[tuple[str, Change]]:
        own = path
        while own.endswith(_BASE):
            own = own.removesuffix(_BASE)
        if EMBEDDING_A in parts:
            a, b = parts[EMBEDDING_A], parts[EMBEDDING_B]
            scaling = self.adapter.scaling(self._module(own)[0], a.shape[0])
            yield f"{own}.weight", LowRank(own, a, b, scaling, 1, True, parts.get(MAGNITUDE))
            return
        module_path, module = self._module(own)
        wrapped = [] if module is None else self._wrapped(module_path, module)
        if path != own or (wrapped and not hasattr(module, "weight")):
            yield self._of_parameter(path, own, module_path, module, wrapped, parts)
            return
        turned = type(module).__name__ == _CONV1D
        a, b = parts[A], parts[B]
        scaling = self.adapter.scaling(module_path, a.shape[0])
        yield f"{own}.weight", LowRank(own, a, b, scaling, 1, turned, parts.get(MAGNITUDE))
        if BIAS in parts:
            yield f"{own}.bias", LowRank(own, None, parts[BIAS], scaling)

    def _of_parameter(
        self,
        path: str,
        own: str,
        module_path: str,
        module: Any,
        wrapped: list[str],
        parts: Mapping[str, TensorSpan],
    ) -> tuple[str, Change]:
        """Of `target_parameters`: peft wraps a module once for each, the first one innermost."""
        place = len(wrapped) - 1 - path.count(_BASE, len(own))
        if not 0 <= place < len(wrapped):
            raise UserError(
                f"the adapter changes {own}, of which target_parameters names no parameter",
                _other_base(self.adapter),
            )
        name = f"{module_path}.{wrapped[place]}"
        shape = getattr(module, wrapped[place]).shape
        experts = shape[0] if len(shape) == 3 else 1
        a, b = parts[A], parts[B]
        if a.shape[0] % experts or b.shape[1] % experts:
            raise UserError(
                f"the adapter has matrices of {list(a.shape)} and {list(b.shape)} for the "
                f"{experts} experts of {name}",
                _other_base(self.adapter),
            )
        scaling = self.adapter.scaling(name, a.shape[0] // experts)
        turned = experts > 1 and getattr(module, "is_transposed", False)
        return name, LowRank(name, a, b, scaling, experts, turned)

    def _wrapped(self, path: str, module: nn.Module) -> list[str]:
        """The names of a module's own parameters that `target_parameters` names, in its order."""
        ends = tuple(f".{name}" for name in self.adapter.parameters)
        own = [name for name, _ in module.named_parameters(recurse=False)]
        return [name for name in own if f".{path}.{name}".endswith(ends)]

    def _place(self, name: str) -> tuple[str, bool]:
        """The parameter of a name, and whether a stored tensor is only a part of it.

        "": the checkpoint has it, the model of text does not. Raises UserError if neither has.
        """
        if name in self._state:
            return name, False
        place, is_part = self._places.get(name, ("", False))
        if (place and not is_part) or name in self.stored.tensors:
            return place, is_part
        if not place and name.removeprefix(_MODEL) in self._stored_ends:
            return "", False
        raise UserError(
            f"the adapter changes {name}, which the model does not have"
            + (f", but as a part of {place}" if place else ""),
            _other_base(self.adapter),
        )

    def _module(self, path: str) -> tuple[str, nn.Module | None]:
        """A module and its path in the model, of whatever name transformers once had for it."""
        places = (self._places.get(f"{path}.{leaf}", ("", True)) for leaf in self._leaves)
        for one in (path, *(name.rpartition(".")[0] for name, is_part in places if not is_part)):
            if one in self._modules:
                return one, self._modules[one]
        return path, None

    @cached_property
    def _stored_ends(self) -> set[str]:
        return {name.removeprefix(_MODEL) for name in self.stored.tensors}

    @cached_property
    def _leaves(self) -> list[str]:
        return ["weight", *(name.rpartition(".")[2] for name in self.adapter.parameters)]

    @cached_property
    def _model(self) -> Any:
        return model_on_meta(self.decoder)

    @cached_property
    def _state(self) -> Any:
        return self._model.state_dict()

    @cached_property
    def _modules(self) -> dict[str, nn.Module]:
        return dict(self._model.named_modules())

    @cached_property
    def _places(self) -> dict[str, tuple[str, bool]]:
        stems = [path.replace(_BASE, "") for path in self.adapter.changed]
        names = {f"{stem}.{leaf}" for stem in stems for leaf in (*self._leaves, "bias")}
        return conversion.places(names | self.adapter.replaced.keys(), self._model)
