"""Gives a model of transformers the weights of one layer at a time, in fp32.

A layer's weights are read when it runs, and dropped after it. What belongs to no layer (embedding,
head, last norm), or to several, is read once. Knows no file.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn

from snapexport.errors import UserError

Tensors = dict[str, Tensor]
Chosen = Callable[[str], bool]
ReadTensors = Callable[[Chosen], Tensors]
"""Reads the tensors whose names are chosen, as the model names and shapes them, in fp32."""


def read_by_layer(model: Any, layers: str, read: ReadTensors) -> None:
    """Read what the layers share, and each layer whenever it runs. layers: the path of their list.

    Raises UserError for a weight of a layer that is not there, as a run may do.
    """
    alone = {
        f"{layers}.{index}.": layer
        for index, layer in enumerate(model.get_submodule(layers))
        if _shares_nothing(layer, model)
    }
    prefixes = tuple(alone)
    shared = read(lambda name: not name.startswith(prefixes))
    _require(
        (n for n in model.state_dict() if ".layers." in n and not n.startswith(prefixes)), shared
    )
    model.load_state_dict(shared, strict=False, assign=True)
    model.tie_weights()
    for prefix, layer in alone.items():
        _read_when_run(layer, prefix, read)


def _read_when_run(layer: nn.Module, prefix: str, read: ReadTensors) -> None:
    names = [prefix + name for name in layer.state_dict()]
    nothing = {name: one.to("meta") for name, one in layer.named_parameters()}

    def take(*_: object) -> None:
        found = read(lambda name: name.startswith(prefix))
        _require(names, found)
        tensors = {name.removeprefix(prefix): tensor for name, tensor in found.items()}
        layer.load_state_dict(tensors, strict=False, assign=True)

    def drop(*_: object) -> None:
        layer.load_state_dict(nothing, strict=False, assign=True)

    drop()
    layer.register_forward_pre_hook(take)
    layer.register_forward_hook(drop)


def _shares_nothing(layer: nn.Module, model: nn.Module) -> bool:
    owners = Counter(id(one) for _, one in model.named_parameters(remove_duplicate=False))
    return all(owners[id(one)] == 1 for one in layer.parameters())


def _require(names: Iterable[str], found: Tensors) -> None:
    if missing := sorted(set(names) - set(found)):
        raise UserError(
            f"the build does not hold {missing[0]} as the model has it",
            "pass the checkpoint that was built as --model",
        )
