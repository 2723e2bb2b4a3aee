"""Learned scores: the file that has them, or a folder of published ones.

A safetensors file with the layers of a small network for each layer of the model, weights [out,in]
and biases [out]:

    layers.{l}.weight, layers.{l}.bias                     linear
    layers.{l}.0.*, layers.{l}.2.*                         two, with a GELU in between

It maps what the queries, keys and values of layer l are projected from, [E], to a score for each KV
head, [Hkv]: the logarithm of the largest attention that the position is expected to get. KVzap's
published weights have this form (arXiv:2601.07891). A layer that does not vote has no tensors.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import ml_dtypes  # noqa: F401 (teaches NumPy the name of bf16)
import numpy as np
from numpy.typing import NDArray

from snapexport.contract.model_facts import ModelFacts
from snapexport.errors import UserError
from snapexport.files.dtypes import BY_SAFETENSORS
from snapexport.files.safetensors import TensorSpan, header, read_header

IN_FOLDER = "model.safetensors"
"""The file of a folder of published scores."""

_FORM = "make it with `snapexport calibrate BUILD --scores`, or name a folder of KVzap's weights"
_ANOTHER = "use scores of this model"
_NAME = re.compile(r"(?:layers|module_list)\.(\d{1,5})\.(?:([02])\.)?(weight|bias)", re.ASCII)
_FLOATS = ("F32", "F16", "BF16")

Floats = NDArray[np.float32]


class Linear(NamedTuple):
    """weight: [out,in]. bias: [out]."""

    weight: Floats
    bias: Floats


Network = tuple[Linear, ...]
"""One linear layer, or two with a GELU in between."""


@dataclass(frozen=True)
class LearnedScores:
    """The network of each layer of the model that votes."""

    layers: Mapping[int, Network]

    @classmethod
    def read(cls, path: Path) -> "LearnedScores":
        """Read a file, or a folder that has one. Raises UserError."""
        file = path / IN_FOLDER if path.is_dir() else path
        if not file.exists():
            raise UserError(f"there is no file {file}", _FORM)
        try:
            spans = read_header(file)
        except UserError as error:
            raise UserError(
                f"{file} does not hold learned scores: {error.message}", _FORM
            ) from None
        parts: dict[int, dict[str, dict[str, TensorSpan]]] = {}
        for name, span in spans.items():
            found = _NAME.fullmatch(name)
            if not found or span.dtype not in _FLOATS:
                raise UserError(f"{file} does not hold learned scores: it has {name:.200}", _FORM)
            layer, place, kind = found.groups()
            parts.setdefault(int(layer), {}).setdefault(place or "", {})[kind] = span
        if not parts:
            raise UserError(f"{file} holds no learned scores", _FORM)
        return cls({layer: _network(file, layer, parts[layer]) for layer in sorted(parts)})

    def content(self) -> bytes:
        """The content of a file."""
        tensors = {
            f"layers.{layer}{place}.{kind}": np.ascontiguousarray(array, "<f4")
            for layer, network in self.layers.items()
            for place, linear in zip(_places(network), network, strict=True)
            for kind, array in linear._asdict().items()
        }
        specs = {name: ("F32", array.shape) for name, array in tensors.items()}
        return header(specs) + b"".join(array.tobytes() for array in tensors.values())

    def require_model(self, model: ModelFacts) -> None:
        """Raise UserError for scores of another model.

        The width of what they take shows in the graphs.
        """
        if most := [layer for layer in self.layers if layer >= model.num_hidden_layers]:
            raise UserError(
                f"the learned scores have a layer {most[0]}, the model has "
                f"{model.num_hidden_layers} layers",
                _ANOTHER,
            )
        for index, layer in model.cached.items():
            network = self.layers.get(index)
            if network is None and not layer.reach:
                raise UserError(f"layer {index} has no learned scores", _ANOTHER)
            if network and len(network[-1].bias) != layer.kv_heads:
                raise UserError(
                    f"layer {index} has learned scores of {len(network[-1].bias)} KV heads, and "
                    f"{layer.kv_heads} KV heads",
                    _ANOTHER,
                )


def _places(network: Network) -> tuple[str, ...]:
    """The places of linear layers in their names."""
    return ("",) if len(network) == 1 else (".0", ".2")


def _network(file: Path, layer: int, parts: Mapping[str, Mapping[str, TensorSpan]]) -> Network:
    places = ("",) if "" in parts else ("0", "2")
    complete = set(parts) == {*places} and all(len(one) == 2 for one in parts.values())
    network = [
        Linear(_array(parts[place]["weight"]), _array(parts[place]["bias"]))
        for place in places
        if complete
    ]
    fits = all(one.weight.ndim == 2 and one.bias.shape == one.weight.shape[:1] for one in network)
    if len(network) == 2:
        fits = fits and network[1].weight.shape[1] == len(network[0].bias)
    if not complete or not fits:
        raise UserError(f"{file}: the tensors of layer {layer} are not a network of scores", _FORM)
    if not all(np.isfinite(array).all() for linear in network for array in linear):
        raise UserError(f"{file}: layer {layer} has a value that is not a number", _FORM)
    return tuple(network)


def _array(span: TensorSpan) -> Floats:
    dtype = np.dtype(BY_SAFETENSORS[span.dtype].numpy)
    count = span.nbytes // dtype.itemsize
    flat = np.fromfile(span.file, dtype, count, offset=span.offset)
    return flat.reshape(span.shape).astype(np.float32)
