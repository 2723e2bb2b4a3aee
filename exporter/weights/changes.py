"""Finds what a LoRA adapter changes: parameters of transformers' model, or stored tensors.

A matrix that becomes a part of a stack, as in adapters for older transformers, is a stored one.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import nn

from snapexport.errors import UserError
from snapexport.exporter.model import Decoder
from snapexport.exporter.model.models import model_on_meta
from snapexport.exporter.read.adapter import (
    BIAS,
    EMBEDDING_A,
    EMBEDDING_B,
    MAGNITUDE,
    A,
    Adapter,
    B,
)
from snapexport.exporter.read.checkpoint import Checkpoint
from snapexport.exporter.weights import conversion
from snapexport.exporter.weights.adapted import LowRank
from snapexport.files.safetensors import TensorSpan

_BASE, _MODEL = ".base_layer", "model."
_BIAS = ".bias"
_NO_BIAS = "lora_bias adds to a layer's bias, and this layer has none: train it without lora_bias"
_CONV1D = "Conv1D"
"""GPT-2's linear layer, whose weight is [K,N]."""
Change = TensorSpan | LowRank


def other_base(adapter: Adapter) -> str:
    """The hint for what does not fit the model."""
    trained = f", which was trained on {adapter.base:.100}" if adapter.base else ""
    return f"name the model of the adapter as --model{trained}"


@dataclass(frozen=True)
class Changes:
    """The changes of an adapter: parameters of the model, and stored tensors that stacks have."""

    adapter: Adapter
    decoder: Decoder
    stored: Checkpoint
    of_model: dict[str, list[Change]] = field(default_factory=dict)
    of_stored: dict[str, list[Change]] = field(default_factory=dict)
    stacks: set[str] = field(default_factory=set)
    left_out: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        ignored = []
        for name, change in self._list_of():
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

    def _list_of(self) -> Iterator[tuple[str, Change]]:
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
        wrapped = [] if module is None else self._wraps(module_path, module)
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
        """List `target_parameters`: peft wraps a module once for each, the first one innermost."""
        place = len(wrapped) - 1 - path.count(_BASE, len(own))
        if not 0 <= place < len(wrapped):
            raise UserError(
                f"the adapter changes {own}, of which target_parameters names no parameter",
                other_base(self.adapter),
            )
        name = f"{module_path}.{wrapped[place]}"
        shape = getattr(module, wrapped[place]).shape
        experts = shape[0] if len(shape) == 3 else 1
        a, b = parts[A], parts[B]
        if a.shape[0] % experts or b.shape[1] % experts:
            raise UserError(
                f"the adapter has matrices of {list(a.shape)} and {list(b.shape)} for the "
                f"{experts} experts of {name}",
                other_base(self.adapter),
            )
        scaling = self.adapter.scaling(name, a.shape[0] // experts)
        turned = experts > 1 and getattr(module, "is_transposed", False)
        return name, LowRank(name, a, b, scaling, experts, turned)

    def _wraps(self, path: str, module: nn.Module) -> list[str]:
        """The names of a module's own parameters that `target_parameters` names, in its order."""
        ends = tuple(f".{name}" for name in self.adapter.parameters)
        own = [name for name, _ in module.named_parameters(recurse=False)]
        return [name for name in own if f".{path}.{name}".endswith(ends)]

    def _place(self, name: str) -> tuple[str, bool]:
        """The parameter of a name, and whether a stored tensor is only a part of it.

        "": the checkpoint has it, the model of text does not. Raises UserError if neither has.
        """
        for one in (name, self._of_text(name)):
            if one in self._state:
                return one, False
        place, is_part = self._places.get(name, ("", False))
        if (place and not is_part) or name in self.stored.tensors:
            return place, is_part
        if not place and name.removeprefix(_MODEL) in self._stored_ends:
            return "", False
        adds_bias = name.endswith(_BIAS) and f"{name.removesuffix(_BIAS)}.weight" in self._state
        raise UserError(
            f"the adapter changes {name}, which the model does not have"
            + (f", but as a part of {place}" if place else ""),
            _NO_BIAS if adds_bias else other_base(self.adapter),
        )

    def _module(self, path: str) -> tuple[str, nn.Module | None]:
        """A module and its path in the model, of whatever name transformers once had for it."""
        places = (self._places.get(f"{path}.{leaf}", ("", True)) for leaf in self._leaves)
        for one in (
            path,
            self._of_text(path),
            *(name.rpartition(".")[0] for name, is_part in places if not is_part),
        ):
            if one in self._modules:
                return one, self._modules[one]
        return path, None

    def _of_text(self, name: str) -> str:
        """The name in a vision-language model of what its text model has for itself."""
        return f"{self.decoder.names.decoder}.{name.removeprefix(_MODEL)}"

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
