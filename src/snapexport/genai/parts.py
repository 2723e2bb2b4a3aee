"""Makes parts of an ONNX graph: new nodes, and the graphs of a build under names of their own."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import (
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

from snapexport.contract import names
from snapexport.graphs.functions import Function

Shape = tuple[int, ...]

value_info = helper.make_tensor_value_info


class Part:
    """Nodes and initializers of a new graph. stem: begins the names of all their values."""

    def __init__(self, stem: str = "") -> None:
        self.nodes: list[NodeProto] = []
        self.initializers: list[TensorProto] = []
        self._stem = stem

    def add(self, op: str, inputs: Sequence[str], *outputs: str, **attributes: Any) -> None:
        """A node, after its first output's name unless `name` is given. Inputs are whole names."""
        own = [self._stem + output for output in outputs]
        given: dict[str, Any] = {"name": f"{op}_{own[0]}", **attributes}
        self.nodes.append(helper.make_node(op, inputs, own, **given))

    def call(
        self, function: Function, inputs: Sequence[str], *outputs: str, **attributes: Any
    ) -> None:
        """A call of a function, whose body the model has to hold."""
        self.add(function.name, inputs, *outputs, domain=names.DOMAIN, **attributes)

    def constant(self, name: str, value: object) -> str:
        """An initializer, int64 unless it is a bool; returns its whole name."""
        kind = np.bool_ if isinstance(value, bool) else np.int64
        return self._hold(name, np.array(value, kind))

    def fill(self, name: str, like: ValueInfoProto, value: int) -> str:
        """An initializer of equal values; returns its whole name."""
        kind = helper.tensor_dtype_to_np_dtype(like.type.tensor_type.elem_type)
        return self._hold(name, np.full(shape_of(like), value, kind))

    def _hold(self, name: str, array: NDArray[Any]) -> str:
        self.initializers.append(numpy_helper.from_array(array, self._stem + name))
        return self._stem + name

    def put_before(self, graph: GraphProto) -> None:
        """Put these nodes before a graph's own."""
        replace(graph.node, [*self.nodes, *graph.node])
        graph.initializer.extend(self.initializers)


def replace(field: Any, values: Iterable[object]) -> None:
    """Give a repeated field of a proto other values."""
    kept = [*values]
    del field[:]
    field.extend(kept)


def rename(graph: GraphProto, stem: str, given: Mapping[str, str]) -> None:
    """Rename every value and node of a graph in place, since a branch shares its parent's names.

    given: {an input: the parent's value in its place}; those stop being inputs. All others get
    `stem`. Weights keep their files.
    """

    def new(name: str) -> str:
        return given.get(name, stem + name) if name else name

    def apply(part: GraphProto) -> None:
        for value in (*part.input, *part.output, *part.value_info, *part.initializer):
            value.name = new(value.name)
        for node in part.node:
            node.name = stem + node.name
            node.input[:] = map(new, node.input)
            node.output[:] = map(new, node.output)
            for inner in subgraphs(node):
                apply(inner)

    replace(graph.input, [value for value in graph.input if value.name not in given])
    apply(graph)


def subgraphs(node: NodeProto) -> list[GraphProto]:
    """The branches of a node."""
    return [one.g for one in node.attribute if one.type == onnx.AttributeProto.GRAPH]


def order(field: Any, wanted: Iterable[str]) -> None:
    """Keep the inputs or outputs of these names, in this order."""
    found = {value.name: value for value in field}
    replace(field, [found[name] for name in wanted])


def weight_files(model: ModelProto) -> set[str]:
    """The files of a model's weights, in its graph and its branches."""

    def locations(graph: GraphProto) -> Iterable[str]:
        for tensor in graph.initializer:
            yield from (one.value for one in tensor.external_data if one.key == "location")
        for node in graph.node:
            for inner in subgraphs(node):
                yield from locations(inner)

    return set(locations(model.graph))


def shape_of(value: ValueInfoProto) -> Shape:
    """The dimensions of a value whose shape is fixed."""
    return tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)


def copy_as(value: ValueInfoProto, name: str) -> ValueInfoProto:
    """A copy of another name."""
    copy = ValueInfoProto()
    copy.CopyFrom(value)
    copy.name = name
    return copy


def bodies(found: Iterable[FunctionProto]) -> list[FunctionProto]:
    """Each function once. Two of one name are a defect."""
    by_name: dict[str, FunctionProto] = {}
    for one in found:
        assert by_name.setdefault(one.name, one) == one, f"two bodies of {one.name}"
    return [*by_name.values()]
