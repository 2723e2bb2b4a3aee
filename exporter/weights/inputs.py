"""Measures what linear layers read: runs the decoder on a text, a layer in memory at a time.

The head reads the decoder's output. What experts read is not measured. Random tokens show which
channels are large, but not which go together as in a text.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
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


TEXT = '''\
The ferry left at half past six, an hour later than the board had promised, and by then most of the
passengers had given up their places on deck. Only an old man with a paper bag of cherries stayed at
the rail. He ate slowly and threw the stones, one after another, at the gulls. "You will miss," said
the girl who had been watching him. "I always miss," he said. "That is why they still come."

The history of the town begins with salt. In the twelfth century a spring was found below the hill,
and within two generations there were eighty huts in which women boiled brine day and night. The
forest disappeared, the bishop grew rich, and in 1348 the plague arrived on the same road as the
merchants. When the mines farther south were opened, prices fell by a third, and the council voted
to build a wall instead of a harbour; historians have argued about that decision ever since.

## Installing the service

1. Download the archive for your system and unpack it. Do not run the installer as root.
2. Open `config.toml` and set `listen = "127.0.0.1:8080"`. The default, `0.0.0.0`, accepts
   connections from every network, which is rarely what you want.
3. Start it with `./server --config config.toml`. If the port is taken, the process exits with
   status 2 and prints the name of the other program.

Note: the cache is kept for 24 hours. To empty it sooner, send `SIGHUP` or delete the folder `tmp/`.

def merge(left, right):
    """Merge two sorted lists into one."""
    result, i, j = [], 0, 0
    while i < len(left) and j < len(right):
        if left[i] <= right[j]:
            result.append(left[i])
            i += 1
        else:
            result.append(right[j])
            j += 1
    return result + left[i:] + right[j:]

#include <stdio.h>
int main(int argc, char **argv) {
    long sum = 0;
    for (int k = 1; k < argc; k++) sum += strtol(argv[k], NULL, 10);
    printf("%d numbers, sum %ld\\n", argc - 1, sum);
    return 0;
}

{"id": 4711, "name": "Garden chair", "price": 39.90, "tags": ["wood", "outdoor"], "stock": null}

SELECT city, COUNT(*) AS orders FROM sales WHERE year = 2021 GROUP BY city ORDER BY orders DESC;

Question: What is the difference between weather and climate?
Answer: Weather is the state of the air at a certain place and time, such as rain in Lisbon this
morning. Climate is the average of weather over many years. A cold week does not show that a climate
is cold, just as one short person does not make a nation small.

Question: A train travels 180 km in 2.5 hours. How fast is it on average?
Answer: Divide the distance by the time: 180 / 2.5 = 72. The train travels at 72 km/h.

User: Could you rewrite this sentence so that it sounds more polite? "Send me the report."
Assistant: Of course. For example: "Could you please send me the report when you have a moment?"
User: Thanks! And in a single word, what is the opposite of "generous"?
Assistant: Stingy.

Let f be a continuous function on the closed interval [a, b] with f(a) < 0 < f(b). Then there is a
point c in (a, b) such that f(c) = 0. To prove it, let c be the supremum of all x with f(x) <= 0. If
f(c) were positive, f would be positive near c, and c would not be the least upper bound.

Blood leaves the heart through the aorta and returns through two large veins. An adult's heart beats
about 100,000 times a day and moves some 7,000 litres. Beta blockers slow it down; caffeine, fever
and fear do the opposite. Patients with chest pain that lasts longer than fifteen minutes should
call an emergency number at once.

Dear Ms. Okafor, thank you for your order of 3 March. Unfortunately two of the five items are out of
stock until the end of the month. We can ship the rest today, or everything together on the 29th;
please let us know which you prefer. We apologize for the inconvenience. Kind regards, Tom Beale

| month | rainfall, mm | visitors |
|---|---:|---:|
| January | 81 | 1,204 |
| April | 47.5 | 3,960 |
| July | 12 | 18,733 |

The minister denied on Tuesday that the contract had been signed before the election. "There was no
agreement, and there was no meeting," she told reporters. Opposition leaders called for an inquiry,
while shares of the company fell 4.2 percent in early trading.

And the king said unto his servants, Go ye into the hills, and bring me him that speaketh of the
flood; for three nights have I dreamed of water, and there is none among my wise men that can say
whether it be the end of my house or the beginning of another.

Der Zug nach Leipzig hat heute etwa zehn Minuten Verspaetung. Wir bitten um Entschuldigung. Le chat
dort sur la chaise pendant que la pluie tombe dans le jardin. Los libros que compramos ayer todavia
no han llegado, pero la tienda promete entregarlos antes del viernes.

TODO: see https://example.org/docs?page=2#top, mail bob@example.com, call +1 555 0134 (until 5 pm).
Haha, ok, see you there!! lol... bring snacks & the blue umbrella :-)
'''
