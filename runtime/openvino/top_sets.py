"""Marks each TopK of a vote by what is read of it, since OpenVINO's takes long where ties matter.

    TopSet      the K highest; of equal ones those with the lower index; in the order of the indices
    TopValues   values alone, which have no ties

The functions of a graph sort what they keep. A TopK outside of them stays as it is.
"""

from snapexport.contract.names import DOMAIN
from snapexport.files.protobuf import Message
from snapexport.runtime.openvino.schema import Attribute, Function, Model, Node

TOP_SET, TOP_VALUES = "TopSet", "TopValues"


def with_top_sets(model: Message) -> Message:
    """The same model with other operators in its functions."""
    found = model.without(Model.FUNCTION)
    for function in model.messages(Model.FUNCTION):
        found.add(Model.FUNCTION, _function(function))
    return found


def _function(function: Message) -> Message:
    nodes = function.messages(Function.NODE)
    read = {name for node in nodes for name in node.texts(Node.INPUT)}
    read.update(function.texts(Function.OUTPUT))
    found = function.without(Function.NODE)
    for node in nodes:
        found.add(Function.NODE, _node(node, read) if _is_top_k(node) else node)
    return found


def _is_top_k(node: Message) -> bool:
    return node.text(Node.OPERATOR) == "TopK" and not node.text(Node.DOMAIN)


def _node(node: Message, read: set[str]) -> Message:
    _, indices = node.texts(Node.OUTPUT)
    lowest = any(
        one.text(Attribute.NAME) == "largest" and one.numbers(Attribute.INTEGER) == [0]
        for one in node.messages(Node.ATTRIBUTE)
    )
    if lowest and indices in read:
        return node
    operator = TOP_SET if indices in read else TOP_VALUES
    found = node.without(Node.OPERATOR, Node.DOMAIN)
    return found.add(Node.OPERATOR, operator).add(Node.DOMAIN, DOMAIN)
