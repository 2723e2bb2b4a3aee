"""Measures what linear layers read: runs the decoder on a text, a layer in memory at a time.

The head reads the decoder's output. What experts read is not measured. Random tokens show which
channels are large, but not which go together as in a text.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from snapexport.exporter.model import Decoder
from snapexport.exporter.model.models import hidden_states_of, model_on_meta
from snapexport.exporter.model.skeleton import compute_buffers
from snapexport.exporter.quiet import quiet
from snapexport.exporter.weights.arranged import Picked
from snapexport.exporter.weights.conversion import as_torch
from snapexport.exporter.weights.forms.rounding import Inputs
from snapexport.exporter.weights.tensor_file import Tensor as Stored

TEXT = Path(__file__).with_name("sample.txt").read_text("utf-8")
"""Prose, code, tables and dialogues, from which a build without texts of its own takes tokens."""
_SAMPLES, _LENGTH = 8, 256
_TRANSPOSED = "Conv1D"
"""GPT-2's linear layer, whose weight is [K,N]."""


@torch.no_grad()
def measure(
    tensors: Mapping[str, Stored], decoder: Decoder, tokens: Sequence[int], block: int
) -> dict[str, Inputs]:
    """{weight: what its layer reads, in blocks}. tensors: by the names of the decoder's model.

    Raises whatever a model raises that can't run so.
    """
    model = model_on_meta(decoder, torch.float32).eval()
    compute_buffers(model)
    inside = model.get_submodule(decoder.names.decoder)
    batch = _batch(tokens, decoder)
    found = _Products(block)
    weights = _Weights(model, tensors, decoder)
    with ExitStack() as stack, quiet():
        weights.load_outside_of_layers(stack, batch)
        weights.load_layers_while_they_run(stack)
        for path, module in inside.named_modules(prefix=decoder.names.decoder):
            if isinstance(module, nn.Linear) or type(module).__name__ == _TRANSPOSED:
                found.collect(f"{path}.weight", module, stack)
        positions = torch.arange(batch.shape[1])[None]
        states = hidden_states_of(inside, batch, positions)
    head = decoder.embedding if decoder.tied else decoder.head
    return found.inputs | {head: Inputs(found.of(states).numpy())}


def _batch(tokens: Sequence[int], decoder: Decoder) -> Tensor:
    """The beginning of the tokens in rows [n,length]; random ones if there are none."""
    size, last = decoder.config.vocab_size, decoder.config.max_position_embeddings
    known = [one for one in tokens if one < size and one not in decoder.never_sampled]
    if not known:
        known = torch.randint(0, size, (_SAMPLES * _LENGTH,), generator=_generator()).tolist()
    length = min(_LENGTH, last, len(known))
    rows = min(_SAMPLES, len(known) // length)
    return torch.tensor(known[: rows * length]).reshape(rows, length)


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@dataclass
class _Products:
    """Sums of products of inputs, which several layers may share."""

    block: int
    inputs: dict[str, Inputs] = field(default_factory=dict)
    _last: tuple[Tensor | None, Inputs | None] = (None, None)

    def collect(self, name: str, module: nn.Module, stack: ExitStack) -> None:
        """Keep what a module reads while `stack` is open."""

        def read(_: nn.Module, given: tuple[Any, ...]) -> None:
            if not given or not isinstance(given[0], Tensor):
                return
            if self._last[0] is not given[0]:
                self._last = given[0], Inputs(self.of(given[0]).numpy())
            assert self._last[1] is not None
            self.inputs[name] = self._last[1]

        stack.callback(module.register_forward_pre_hook(read).remove)

    def of(self, states: Tensor) -> Tensor:
        """fp32 [blocks,block,block] of states [...,K]."""
        flat = states.reshape(-1, states.shape[-1]).float()
        padded = nn.functional.pad(flat, (0, -flat.shape[-1] % self.block))
        blocks = padded.reshape(len(flat), -1, self.block).transpose(0, 1)
        return blocks.mT @ blocks


@dataclass(frozen=True)
class _Weights:
    """Gives a model on the meta device its weights."""

    model: Any
    tensors: Mapping[str, Stored]
    decoder: Decoder

    def load_outside_of_layers(self, stack: ExitStack, tokens: Tensor) -> None:
        """Load what no layer has: only the rows of some tokens of the embedding."""
        names, layers = self.decoder.names, f"{self.decoder.names.layers}."
        ids = torch.unique(tokens)
        embedding = self.model.get_submodule(names.embedding)
        rows = Picked(self.tensors[self.decoder.embedding], tuple(ids.tolist()))
        embedding.weight = _parameter(as_torch(rows))
        embedding.padding_idx = None

        def places(_: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return torch.searchsorted(ids, given[0]), *given[1:]

        stack.callback(embedding.register_forward_pre_hook(places).remove)
        left_out = {self.decoder.embedding, self.decoder.head}
        for name in self.model.get_submodule(names.decoder).state_dict(prefix=f"{names.decoder}."):
            if not name.startswith(layers) and name not in left_out:
                self._load(self.model, name, name)

    def load_layers_while_they_run(self, stack: ExitStack) -> None:
        """A layer's weights are in memory from before its forward until after it."""
        for place, layer in enumerate(self.model.get_submodule(self.decoder.names.layers)):
            path = f"{self.decoder.names.layers}.{place}"

            def load(layer: nn.Module, *_: Any, path: str = path) -> None:
                for name in layer.state_dict():
                    self._load(layer, name, f"{path}.{name}")

            def leave(layer: nn.Module, *_: Any) -> None:
                for parameter in layer.parameters():
                    parameter.data = torch.empty(0)

            stack.callback(layer.register_forward_pre_hook(load).remove)
            stack.callback(layer.register_forward_hook(leave).remove)

    def _load(self, module: nn.Module, name: str, stored: str) -> None:
        path, _, own = name.rpartition(".")
        holder, tensor = module.get_submodule(path), as_torch(self.tensors[stored])
        if own in holder._parameters:
            setattr(holder, own, _parameter(tensor))
        else:
            holder._buffers[own] = tensor


def _parameter(tensor: Tensor) -> nn.Parameter:
    return nn.Parameter(tensor.float(), requires_grad=False)
