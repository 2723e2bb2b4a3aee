"""Makes the trace of a deep model from a trace of few layers: layers of one type differ in weights.

PyTorch's export takes about half a second for each layer. So a shallow model is traced: the first
layer, then one of each type, whose nodes are copied for every further layer. Knows no architecture,
and no operator but attention's marker, which holds the index of its layer.
"""

import copy
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir

from snapexport.exporter.architectures import layer_types, mlp_types, with_mlp_types

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_SCOPES = "pkg.torch.onnx.name_scopes"
_LAYER = re.compile(r"\blayers\.(\d+)\b")


def shallow(config: "PretrainedConfig") -> "PretrainedConfig":
    """The config of a model of the first layer and one more of each type."""
    types = _traced_types(config)
    shortened = copy.deepcopy(config)
    shortened.num_hidden_layers = len(types)
    if getattr(config, "layer_types", None):
        shortened.layer_types = [attention for attention, _ in types]
    with_mlp_types(shortened, [mlp for _, mlp in types])
    return shortened


def _types(config: "PretrainedConfig") -> list[tuple[str, str]]:
    """Each layer's type: of its attention and of its MLP."""
    return list(zip(layer_types(config), mlp_types(config), strict=True))


def _traced_types(config: "PretrainedConfig") -> list[tuple[str, str]]:
    types = _types(config)
    return [types[0], *dict.fromkeys(types)]


def repeat_layers(model: ir.Model, config: "PretrainedConfig") -> None:
    """Turn a trace of `shallow(config)` into a trace of `config`."""
    graph, traced = model.graph, _traced_types(config)
    layers = _layers(graph, len(traced))
    outputs = [_output(layer) for layer in layers]
    weights = _take_weights(graph)
    hidden, copies = outputs[0], list[ir.Node]()
    for index, kind in enumerate(_types(config)[1:], start=1):
        which = traced.index(kind, 1)
        made = _Copy(index, weights, {outputs[which - 1]: hidden})
        copies += [made.node(node) for node in layers[which]]
        graph.initializers.update({str(value.name): value for value in made.weights})
        hidden = made.values[outputs[which]]
    graph.insert_after(layers[-1][-1], copies)
    ir.convenience.replace_all_uses_with(outputs[-1], hidden)
    graph.remove([node for layer in layers[1:] for node in layer], safe=True)


def _layers(graph: ir.Graph, count: int) -> list[list[ir.Node]]:
    """Each layer's nodes. Constants are left out: several layers may read one."""
    layers: list[list[ir.Node]] = [[] for _ in range(count)]
    for node in graph:
        found = _LAYER.search(node.metadata_props[_SCOPES])
        if found and node.op_type != "Constant":
            layers[int(found[1])].append(node)
    return layers


def _output(layer: Sequence[ir.Node]) -> ir.Value:
    """The one value of a layer that other nodes read: the hidden states."""
    values = (value for node in layer for value in node.outputs)
    inside = set(layer)
    (output,) = (value for value in values if not inside.issuperset(value.consumers()))
    return output


def _take_weights(graph: ir.Graph) -> dict[ir.Value, str]:
    """Remove the weights of all layers but the first. Returns them with their names."""
    names = [name for name in graph.initializers if (at := _LAYER.search(name)) and at[1] != "0"]
    return {graph.initializers.pop(name): name for name in names}


class _Copy:
    """Copies nodes for the layer `index`.

    taken: the copied layer's weights and their names. values: the copied layer's value -> this
    layer's. weights: this layer's.
    """

    def __init__(
        self, index: int, taken: dict[ir.Value, str], values: dict[ir.Value, ir.Value]
    ) -> None:
        self.index, self.taken, self.values = index, taken, values
        self.weights: list[ir.Value] = []

    def node(self, node: ir.Node) -> ir.Node:
        attributes = dict(node.attributes)
        if "layer" in attributes:
            attributes["layer"] = ir.AttrInt64("layer", self.index)
        return ir.Node(
            node.domain,
            node.op_type,
            [value and self._input(value) for value in node.inputs],
            attributes.values(),
            outputs=[self._value(value, f"{value.name}.{self.index}") for value in node.outputs],
            version=node.version,
            name=f"{node.name}.{self.index}",
        )

    def _input(self, value: ir.Value) -> ir.Value:
        if value in self.taken and value not in self.values:
            name = _LAYER.sub(f"layers.{self.index}", self.taken[value])
            self.weights.append(self._value(value, name))
            self.weights[-1].const_value = value.const_value
        return self.values.get(value, value)

    def _value(self, value: ir.Value, name: str) -> ir.Value:
        self.values[value] = ir.Value(name=name, shape=value.shape, type=value.type)
        return self.values[value]
