"""Inlines the model-local functions of an ONNX file, which OpenVINO's reader does not know.

Works on the file's bytes: the runtime has no onnx. Knows no OpenVINO.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import count

from snapexport.files.protobuf import Message
from snapexport.runtime.openvino.schema import (
    Attribute,
    Function,
    Graph,
    Model,
    Node,
    Tensor,
    Value,
    graph_of,
)

Functions = Mapping[tuple[str, str, str], Message]
"""By domain, name and overload."""

Rename = Callable[[str], str]


def inlined(model: Message) -> Message:
    """The same model without functions."""
    functions = {_key(one, Function): one for one in model.messages(Model.FUNCTION)}
    graph = graph_of(model)
    rest = model.without(Model.GRAPH, Model.FUNCTION)
    return rest.add(Model.GRAPH, _Inliner(functions).graph(graph))


class _Inliner:
    def __init__(self, functions: Functions) -> None:
        self._functions = functions
        self._calls = count()

    def graph(self, graph: Message) -> Message:
        """A graph, or the body of a loop or a branch, without calls."""
        whole = graph.without(Graph.NODE)
        for node in graph.messages(Graph.NODE):
            for one in self._nodes(node):
                whole.add(Graph.NODE, one)
        return whole

    def _nodes(self, node: Message) -> Iterator[Message]:
        """The node, or what it calls."""
        function = self._functions.get(_key(node, Node))
        if function is None:
            yield _with_graphs(node, self.graph)
            return
        call = _Call(node, function, f"call{next(self._calls)}.")
        for inner in function.messages(Function.NODE):
            yield from self._nodes(call.node(inner))


class _Call:
    """One call of a function: what its body's names and attributes are in the caller's graph."""

    def __init__(self, call: Message, function: Message, prefix: str) -> None:
        self._prefix = prefix
        self._names = dict(
            zip(function.texts(Function.INPUT), call.texts(Node.INPUT), strict=False)
        )
        self._names |= dict.fromkeys(function.texts(Function.INPUT)[len(self._names) :], "")
        results = zip(function.texts(Function.OUTPUT), call.texts(Node.OUTPUT), strict=False)
        self._names |= {inner: outer for inner, outer in results if outer}
        given = [*function.messages(Function.DEFAULT), *call.messages(Node.ATTRIBUTE)]
        self._attributes = {one.text(Attribute.NAME): one for one in given}

    def node(self, node: Message) -> Message:
        """A node of the body, as it stands in the caller's graph."""
        found = node.without(Node.INPUT, Node.OUTPUT, Node.NAME, Node.ATTRIBUTE)
        for name in node.texts(Node.INPUT):
            found.add(Node.INPUT, self._name(name))
        for name in node.texts(Node.OUTPUT):
            found.add(Node.OUTPUT, self._name(name))
        if name := node.text(Node.NAME):
            found.add(Node.NAME, self._prefix + name)
        for attribute in node.messages(Node.ATTRIBUTE):
            if value := self._value(attribute):
                found.add(Node.ATTRIBUTE, value)
        return _with_graphs(found, self._graph)

    def _name(self, name: str) -> str:
        return self._names.get(name, self._prefix + name) if name else ""

    def _value(self, attribute: Message) -> Message | None:
        """An attribute, with the caller's value if it refers to one."""
        if not (referred := attribute.text(Attribute.REFERENCE)):
            return attribute
        given = self._attributes.get(referred)
        name = attribute.text(Attribute.NAME)
        return given and given.without(Attribute.NAME).add(Attribute.NAME, name)

    def _graph(self, graph: Message) -> Message:
        """A body inside of the body. Its own names change too: they may repeat the caller's."""
        fields = Graph.NODE, Graph.INPUT, Graph.OUTPUT, Graph.INITIALIZER, Graph.VALUE_INFO
        found = graph.without(*fields)
        for node in graph.messages(Graph.NODE):
            found.add(Graph.NODE, self.node(node))
        for field, at in (
            (Graph.INPUT, Value.NAME),
            (Graph.OUTPUT, Value.NAME),
            (Graph.INITIALIZER, Tensor.NAME),
        ):
            for value in graph.messages(field):
                found.add(field, value.without(at).add(at, self._name(value.text(at))))
        return found


def _with_graphs(node: Message, change: Callable[[Message], Message]) -> Message:
    """The node with changed bodies."""
    attributes = node.messages(Node.ATTRIBUTE)
    if not any(one.all(Attribute.GRAPH) for one in attributes):
        return node
    found = node.without(Node.ATTRIBUTE)
    for one in attributes:
        bodies = one.messages(Attribute.GRAPH)
        changed = one.without(Attribute.GRAPH)
        for body in bodies:
            changed.add(Attribute.GRAPH, change(body))
        found.add(Node.ATTRIBUTE, changed)
    return found


def _key(message: Message, fields: type[Node] | type[Function]) -> tuple[str, str, str]:
    return (
        message.text(fields.DOMAIN),
        message.text(fields.OPERATOR),
        message.text(fields.OVERLOAD),
    )
