"""Cuts a finished graph at its collectives, for runtimes that have none.

A segment is a graph that runs from some collectives to the next ones. Between two segments the
ranks' parts of `reduce.{i}` are summed up in place, those of `gather.{i}` are joined along axis 0
as `gathered.{i}`, and rows of `exchange.{i}` change places. Values that later segments read are
outputs `carried.{i}`. What follows only from the host's inputs, such as masks, is calculated again
in each segment that reads it. What follows from caches is not: an earlier segment may have written
over them.
"""

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import onnx
from onnx import (
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
)

from snapexport.contract import names
from snapexport.graphs.passes.base import SurgeryError

_IN_PLACE = {names.ALL_REDUCE: names.to_reduce, names.ALL_TO_ALL: names.to_exchange}
_COLLECTIVES = (names.ALL_GATHER, *_IN_PLACE)


def segments(model: ModelProto) -> list[ModelProto]:
    """The segments of a graph in their order; none for a graph without collectives."""
    levels = _Levels.of(model.graph)
    if not levels.last:
        return []
    # Passes give types to what they must; between segments everything needs one.
    model = onnx.shape_inference.infer_shapes(model)
    parts = [_Part.of(model.graph, levels, level) for level in range(levels.last + 1)]
    for name in [name for part in parts for name in part.given if levels.of_value(name) == 0]:
        parts[0].read(model.graph, levels, name)
    _require_unwritten(model.graph, parts)
    renamed = _canonical(model.graph, parts)
    return [_segment(model, levels, part, renamed) for part in parts]


@dataclass(frozen=True)
class _Levels:
    """levels: how many collectives are before each value. made_by: the index of its node.
    of_states: the values before all collectives that follow from caches.
    """

    levels: Mapping[str, int]
    made_by: Mapping[str, int]
    of_states: frozenset[str]
    last: int

    @classmethod
    def of(cls, graph: GraphProto) -> "_Levels":
        levels: dict[str, int] = {}
        made_by: dict[str, int] = {}
        for index, node in enumerate(graph.node):
            level = max((levels.get(name, 0) for name in _reads(node)), default=0)
            for output in filter(None, node.output):
                levels[output] = level + is_collective(node)
                made_by[output] = index
        of_states = {value.name for value in graph.input if _is_state(value.name)}
        for node in graph.node:
            if not of_states.isdisjoint(_reads(node)):
                of_states.update(filter(None, node.output))
        _sink(graph, levels, of_states)
        early = frozenset(name for name in of_states if levels.get(name) == 0)
        return cls(levels, made_by, early, max(levels.values(), default=0))

    def of_value(self, name: str) -> int:
        """0 for inputs and weights."""
        return self.levels.get(name, 0)


def _is_state(name: str) -> bool:
    """Whether an input is a cache, whose buffer an output may share."""
    return names.present_of(name) != name


def _require_unwritten(graph: GraphProto, parts: Iterable["_Part"]) -> None:
    """Refuse a cache that is read after its new state was written, maybe in its place."""
    written: set[str] = set()
    outputs = {value.name for value in graph.output}
    for part in parts:
        nodes = [graph.node[index] for index in part.nodes]
        for name in {name for node in nodes for name in _reads(node)}:
            if _is_state(name) and names.present_of(name) in written:
                raise SurgeryError(f"{name} is read after it was written, in segment {part.level}")
        written |= outputs.intersection(name for node in nodes for name in node.output)


def _sink(graph: GraphProto, levels: dict[str, int], of_states: Container[str]) -> None:
    """Move a node to the first level that reads it: fewer values are carried over, and none that
    is an output.

    What a vote reads may have a length that depends on the prompt's, which nothing between two
    segments can have. What follows from the host's inputs stays: later levels calculate it again.
    """
    read = {name for node in graph.node for name in _reads(node)}
    ends = [value.name for value in graph.output if value.name not in read]
    first = {name: levels.get(name, 0) for name in ends}
    # A state that follows only from states, such as an unchanged scale, is written last.
    last = max(levels.values(), default=0)
    first |= {name: last for name, level in first.items() if not level and name in of_states}
    for node in reversed(graph.node):
        outputs = [name for name in node.output if name]
        level = levels[outputs[0]] - is_collective(node)
        if (level or outputs[0] in of_states) and not is_collective(node):
            level = min((first[name] for name in outputs if name in first), default=level)
            levels |= dict.fromkeys(outputs, level)
        for name in _reads(node):
            first[name] = min(level, first.get(name, level))


@dataclass
class _Part:
    """One segment: its nodes by index, and the values that it reads of former segments."""

    level: int
    nodes: set[int] = field(default_factory=set)
    given: dict[str, None] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: GraphProto, levels: _Levels, level: int) -> "_Part":
        """The nodes of a level, and those of level 0 that they read."""
        part = cls(level)
        for name in _ends(graph) if level == 0 else ():
            if levels.of_value(name) == 0:
                part.read(graph, levels, name)
        for index, node in enumerate(graph.node if level else ()):
            if not is_collective(node) and levels.of_value(_first(node)) == level:
                part._take(graph, levels, index)
        return part

    def _take(self, graph: GraphProto, levels: _Levels, index: int) -> None:
        if index not in self.nodes:
            self.nodes.add(index)
            for name in _reads(graph.node[index]):
                self.read(graph, levels, name)

    def read(self, graph: GraphProto, levels: _Levels, name: str) -> None:
        """Take what makes a value, or the value itself from an earlier segment."""
        index = levels.made_by.get(name)
        if index is None:
            return
        is_earlier = 0 < levels.of_value(name) < self.level
        is_early = self.level > 0 and name in levels.of_states
        if is_earlier or is_early or is_collective(graph.node[index]):
            self.given[name] = None
        else:
            self._take(graph, levels, index)


def is_collective(node: NodeProto) -> bool:
    """Whether all ranks meet at a node."""
    return node.domain == names.DOMAIN and node.op_type in _COLLECTIVES


def _ends(graph: GraphProto) -> list[str]:
    """The values for which a graph is run: its outputs, and what the ranks exchange."""
    exchanged = [node.input[0] for node in graph.node if is_collective(node)]
    return [value.name for value in graph.output] + exchanged


def _first(node: NodeProto) -> str:
    return str(next(filter(None, node.output)))


def _reads(node: NodeProto) -> Iterator[str]:
    """The values that a node reads, also inside its subgraphs."""
    yield from filter(None, node.input)
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            inner = attribute.g
            own = {value.name for value in (*inner.input, *inner.initializer)}
            own |= {output for node in inner.node for output in node.output}
            yield from (name for node in inner.node for name in _reads(node) if name not in own)


def _canonical(graph: GraphProto, parts: Iterable[_Part]) -> dict[str, str]:
    """{value between segments: its name there}. A sum takes the place of its summand, and what
    the ranks exchange that of what they gave.
    """
    renamed: dict[str, str] = {}
    for index, node in enumerate(node for node in graph.node if is_collective(node)):
        (part,), (whole,) = node.input, node.output
        in_place = _IN_PLACE.get(node.op_type)
        if part in renamed:
            raise SurgeryError(f"two collectives read {part}")
        renamed[part] = in_place(index) if in_place else names.to_gather(index)
        renamed[whole] = in_place(index) if in_place else names.gathered(index)
    others = {name: None for part in parts for name in part.given if name not in renamed}
    renamed |= {name: names.carried(index) for index, name in enumerate(others)}
    if ends := [value.name for value in graph.output if value.name in renamed]:
        raise SurgeryError(f"{ends[0]} is an output, and is between two segments")
    return renamed


def _segment(
    model: ModelProto, levels: _Levels, part: _Part, renamed: Mapping[str, str]
) -> ModelProto:
    graph, typed = model.graph, _types(model.graph)
    nodes = [graph.node[index] for index in sorted(part.nodes)]
    read = {name for node in nodes for name in _reads(node)}
    made = {output for node in nodes for output in node.output}
    # The level's own: what was calculated again is an output only of segment 0.
    own = {name for name in made if levels.of_value(name) == part.level}
    outputs = [value for value in graph.output if value.name in own]
    outputs += [_require_type(typed, name) for name in renamed if name in own]
    inputs = [value for value in graph.input if value.name in read]
    inputs += [_require_type(typed, name) for name in part.given]
    piece = onnx.helper.make_graph(
        [_rename_node(node, renamed) for node in nodes],
        f"{graph.name}-{part.level}",
        [_rename_value(value, renamed) for value in inputs],
        [_rename_value(value, renamed) for value in outputs],
        [tensor for tensor in graph.initializer if tensor.name in read],
    )
    return onnx.helper.make_model(
        piece,
        opset_imports=model.opset_import,
        functions=_functions_of(model, nodes),
        ir_version=model.ir_version,
        producer_name=model.producer_name,
    )


def _types(graph: GraphProto) -> dict[str, ValueInfoProto]:
    values = (*graph.value_info, *graph.output)
    return {value.name: value for value in values}


def _require_type(typed: Mapping[str, ValueInfoProto], name: str) -> ValueInfoProto:
    value = typed.get(name)
    kind = value.type.tensor_type if value else None
    if not value or not kind or kind.elem_type == TensorProto.UNDEFINED:
        raise SurgeryError(f"{name} is between two segments, and has no type")
    if not kind.HasField("shape") or not all(dim.dim_value > 0 for dim in kind.shape.dim):
        raise SurgeryError(f"{name} is between two segments, and has no fixed shape")
    return value


def _rename_value(value: ValueInfoProto, renamed: Mapping[str, str]) -> ValueInfoProto:
    copy = ValueInfoProto()
    copy.CopyFrom(value)
    copy.name = renamed.get(value.name, value.name)
    return copy


def _rename_node(node: NodeProto, renamed: Mapping[str, str]) -> NodeProto:
    """A copy. Subgraphs read the names of their own graph: they are renamed as well."""
    copy = NodeProto()
    copy.CopyFrom(node)
    copy.input[:] = [renamed.get(name, name) for name in node.input]
    copy.output[:] = [renamed.get(name, name) for name in node.output]
    for attribute in copy.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            inner = [_rename_node(node, renamed) for node in attribute.g.node]
            del attribute.g.node[:]
            attribute.g.node.extend(inner)
    return copy


def _functions_of(model: ModelProto, nodes: Iterable[NodeProto]) -> list[FunctionProto]:
    """The functions that nodes call, and those that these call."""
    bodies = {function.name: function for function in model.functions}
    called: set[str] = set()
    waiting = [node.op_type for node in nodes if node.domain == names.DOMAIN]
    while waiting:
        if (name := waiting.pop()) in bodies and name not in called:
            called.add(name)
            waiting += [node.op_type for node in bodies[name].node if node.domain == names.DOMAIN]
    return [function for function in model.functions if function.name in called]
