"""Numbers of the fields of ONNX's messages, as onnx.proto has them: those that are read here."""

from snapexport.files.protobuf import Message


class Model:
    """ModelProto."""

    GRAPH, FUNCTION = 7, 25


class Graph:
    """GraphProto."""

    NODE, INITIALIZER, INPUT, OUTPUT, VALUE_INFO = 1, 5, 11, 12, 13


class Node:
    """NodeProto."""

    INPUT, OUTPUT, NAME, OPERATOR, ATTRIBUTE, DOMAIN, OVERLOAD = 1, 2, 3, 4, 5, 7, 8


class Attribute:
    """AttributeProto. REFERENCE: the attribute of the function whose value it takes."""

    NAME, INTEGER, GRAPH, REFERENCE = 1, 3, 6, 21


class Function:
    """FunctionProto. DEFAULT: attributes with a value for calls that give none."""

    OPERATOR, INPUT, OUTPUT, NODE, DOMAIN, DEFAULT, OVERLOAD = 1, 4, 5, 7, 10, 11, 13


class Tensor:
    """TensorProto. EXTERNAL: where its bytes lie, entries of texts; LOCATION: that they do."""

    DIMS, TYPE, NAME, RAW, EXTERNAL, LOCATION = 1, 2, 8, 9, 13, 14


class Entry:
    """StringStringEntryProto."""

    KEY, VALUE = 1, 2


class Value:
    """ValueInfoProto."""

    NAME, TYPE = 1, 2


class Type:
    """TypeProto's tensor, and its shape."""

    TENSOR, ELEMENT, SHAPE = 1, 1, 2


class Shape:
    """TensorShapeProto, and the size of a dimension."""

    DIM, SIZE = 1, 1


def graph_of(model: Message) -> Message:
    """A model's graph. Raises ValueError for a model without one."""
    graphs = model.messages(Model.GRAPH)
    if not graphs:
        raise ValueError("it has no graph")
    return graphs[-1]
