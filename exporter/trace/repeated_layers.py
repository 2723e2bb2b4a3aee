"""Makes the trace of a deep model from a trace of few layers: layers of one type differ in weights.

PyTorch's export takes about half a second for each layer. So a shallow model is traced: the first
layer, then one of each type, whose nodes are copied for every further layer. Knows no architecture,
and no operator but attention's marker, which holds the index of its layer.
"""

import re
from collections.abc import Sequence

import onnx_ir as ir

from snapexport.exporter.model import Decoder
from snapexport.graphs.markers import TRACE_DOMAIN

_SCOPES = "pkg.torch.onnx.name_scopes"


class NotRepeatableError(Exception):
    """Nodes of a layer can't be copied for others: each layer has to be traced."""


def traced_places(decoder: Decoder) -> list[int] | None:
    """The first layer and one more of each kind, which stand for all. None: each is traced."""
    kinds = decoder.kinds
    places = [0, *(_another(kinds, kind) for kind in dict.fromkeys(kinds))]
    return None if decoder.layers_read_their_own or len(places) > len(kinds) else places


def _another(kinds: Sequence[int], kind: int) -> int:
    """The second layer of a kind, or its only one."""
    places = [place for place, found in enumerate(kinds) if found == kind]
    return places[min(1, len(places) - 1)]


def repeat_layers(model: ir.Model, decoder: Decoder, places: Sequence[int]) -> None:
    """Turn a trace of the layers at `places` into a trace of all. Raises NotRepeatableError."""
    graph, name = model.graph, decoder.names.layers.rpartition(".")[2]
    named = re.compile(rf"\b{name}\.(\d+)\b")
    traced = [decoder.kinds[place] for place in places]
    layers = _layers(graph, named, len(places))
    outputs = [_output(layer) for layer in layers]
    weights = _take_weights(graph, named)
    hidden, copies = outputs[0], list[ir.Node]()
    for place, kind in enumerate(decoder.kinds[1:], start=1):
        which = traced.index(kind, 1)
        made = _Copy(place, f"{name}.{place}", named, weights, {outputs[which - 1]: hidden})
        copies += [made.node(node) for node in layers[which]]
        graph.initializers.update({str(value.name): value for value in made.weights})
        hidden = made.values[outputs[which]]
    graph.insert_after(layers[-1][-1], copies)
    ir.convenience.replace_all_uses_with(outputs[-1], hidden)
    graph.remove([node for layer in layers[1:] for node in layer], safe=True)


def _layers(graph: ir.Graph, named: re.Pattern[str], count: int) -> list[list[ir.Node]]:
    """Each layer's nodes. Constants are left out: several layers may read one."""
    layers: list[list[ir.Node]] = [[] for _ in range(count)]
    for node in graph:
        found = named.search(node.metadata_props[_SCOPES])
        if found and node.op_type != "Constant":
            layers[int(found[1])].append(node)
    return layers


def _output(layer: Sequence[ir.Node]) -> ir.Value:
    """The one value of a layer that other nodes read: the hidden states."""
    values = (value for node in layer for value in node.outputs)
    inside = set(layer)
    read = [value for value in values if not inside.issuperset(value.consumers())]
    if len(read) != 1:
        raise NotRepeatableError(f"{len(read)} values of a layer are read outside of it")
    return read[0]


def _take_weights(graph: ir.Graph, named: re.Pattern[str]) -> dict[ir.Value, str]:
    """Remove the weights of all layers but the first. Returns them with their names."""
    names = [name for name in graph.initializers if (at := named.search(name)) and at[1] != "0"]
    return {graph.initializers.pop(name): name for name in names}


class _Copy:
    """Copies nodes for the layer at `place`.

    name: of that layer in names of weights, which `named` finds. taken: the copied layer's weights
    and their names. values: the copied layer's value -> this layer's. weights: this layer's.
    """

    def __init__(
        self,
        place: int,
        name: str,
        named: re.Pattern[str],
        taken: dict[ir.Value, str],
        values: dict[ir.Value, ir.Value],
    ) -> None:
        self.place, self.name, self.named = place, name, named
        self.taken, self.values = taken, values
        self.weights: list[ir.Value] = []

    def node(self, node: ir.Node) -> ir.Node:
        attributes = dict(node.attributes)
        if node.domain == TRACE_DOMAIN and "layer" in attributes:
            attributes["layer"] = ir.AttrInt64("layer", self.place)
        return ir.Node(
            node.domain,
            node.op_type,
            [value and self._input(value) for value in node.inputs],
            attributes.values(),
            outputs=[self._value(value, f"{value.name}.{self.place}") for value in node.outputs],
            version=node.version,
            name=f"{node.name}.{self.place}",
        )

    def _input(self, value: ir.Value) -> ir.Value:
        if value in self.taken and value not in self.values:
            name = self.named.sub(self.name, self.taken[value])
            self.weights.append(self._value(value, name))
            self.weights[-1].const_value = value.const_value
        return self.values.get(value, value)

    def _value(self, value: ir.Value, name: str) -> ir.Value:
        self.values[value] = ir.Value(name=name, shape=value.shape, type=value.type)
        return self.values[value]
