"""Takes the writes of caches out of a graph: it then returns the new states, and where they belong.

OpenVINO copies an input that a graph writes to, and once more into the output. So the host writes
the new states after the run, and attention reads the cache as it was before, beside them:

    present = TensorScatter(past, new, start)        CacheAttention(query, past_key, new_key,
    out = Attention(query, present..., mask, n)   ->     past_value, new_value, start, mask, n)

What else reads a written cache still has it written in the graph. Knows no OpenVINO.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from snapexport.contract.names import DOMAIN
from snapexport.files.protobuf import Message
from snapexport.runtime.openvino.schema import Graph, Model, Node, Type, Value, graph_of

CACHE_ATTENTION = "CacheAttention"
"""Inputs: as above; mask and n may be "". Attributes: as Attention's."""

_INT64 = 7  # onnx.TensorProto.INT64
_PAST, _NEW, _START = 0, 1, 2
"""Inputs of TensorScatter."""
_QUERY, _KEY, _VALUE, _MASK, _VALID = 0, 1, 2, 3, 6
"""Inputs of Attention."""


@dataclass(frozen=True)
class CacheWrite:
    """What the host writes. states: the output of new states, [B,H,C,D]. start: the output of the
    first one's cache slot in each row, int64 [B].
    """

    states: str
    start: str


def without_writes(model: Message) -> tuple[Message, Mapping[str, CacheWrite]]:
    """The same model without them, and what takes the place of each output that it has no more."""
    graph = graph_of(model)
    nodes = graph.messages(Graph.NODE)
    found = _Writes(graph, nodes)
    rest = graph.without(Graph.NODE, Graph.OUTPUT)
    for node in [*found.nodes(nodes), *found.returned()]:
        rest.add(Graph.NODE, node)
    for value in found.outputs(graph):
        rest.add(Graph.OUTPUT, value)
    return model.without(Model.GRAPH).add(Model.GRAPH, rest), found.writes


class _Writes:
    def __init__(self, graph: Message, nodes: list[Message]) -> None:
        inputs = {value.text(Value.NAME) for value in graph.messages(Graph.INPUT)}
        self._scatters = {
            node.texts(Node.OUTPUT)[0]: node.texts(Node.INPUT)
            for node in nodes
            if node.text(Node.OPERATOR) == "TensorScatter"
            and node.texts(Node.INPUT)[_PAST] in inputs
        }
        outputs = {value.text(Value.NAME) for value in graph.messages(Graph.OUTPUT)}
        self.writes = {
            present: CacheWrite(f"new.{present}", f"start.{inputs[_START]}")
            for present, inputs in self._scatters.items()
            if present in outputs
        }

    def nodes(self, nodes: list[Message]) -> Iterator[Message]:
        """The nodes, with attention that reads caches as they were."""
        changed = [self._attention(node) for node in nodes]
        read = {name for node in changed for name in node.texts(Node.INPUT)}
        for node in changed:
            written = node.texts(Node.OUTPUT)[0]
            if written not in self._scatters or written in read:
                yield node

    def returned(self) -> Iterator[Message]:
        """Nodes that name what is returned: a graph's input may be among it."""
        named: dict[str, str] = {}
        for present, write in self.writes.items():
            inputs = self._scatters[present]
            named |= {write.states: inputs[_NEW], write.start: inputs[_START]}
        for output, value in named.items():
            node = Message().add(Node.INPUT, value).add(Node.OUTPUT, output)
            yield node.add(Node.OPERATOR, "Identity").add(Node.NAME, output)

    def outputs(self, graph: Message) -> Iterator[Message]:
        """The graph's outputs, and those that the host writes into caches."""
        for value in graph.messages(Graph.OUTPUT):
            if write := self.writes.get(value.text(Value.NAME)):
                (tensor,) = value.messages(Value.TYPE)[0].messages(Type.TENSOR)
                yield _output(write.states, tensor.numbers(Type.ELEMENT)[-1])
            else:
                yield value
        for start in sorted({write.start for write in self.writes.values()}):
            yield _output(start, _INT64)

    def _attention(self, node: Message) -> Message:
        inputs = node.texts(Node.INPUT)
        if node.text(Node.OPERATOR) != "Attention":
            return node
        key, value = (self._scatters.get(inputs[at]) for at in (_KEY, _VALUE))
        if key is None or value is None or key[_START] != value[_START]:
            return node
        optional = (inputs[at] if at < len(inputs) else "" for at in (_MASK, _VALID))
        caches = key[_PAST], key[_NEW], value[_PAST], value[_NEW], key[_START]
        found = node.without(Node.INPUT, Node.OPERATOR, Node.DOMAIN)
        found.add(Node.OPERATOR, CACHE_ATTENTION).add(Node.DOMAIN, DOMAIN)
        for name in (inputs[_QUERY], *caches, *optional):
            found.add(Node.INPUT, name)
        return found


def _output(name: str, element: int) -> Message:
    tensor = Message().add(Type.ELEMENT, element)
    return Message().add(Value.NAME, name).add(Value.TYPE, Message().add(Type.TENSOR, tensor))
