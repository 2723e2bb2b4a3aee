"""Converts cache writes and attention, which OpenVINO's reader of ONNX does not know.

A KV head's query heads are folded into rows, so that keys and values are never repeated in memory.
OpenVINO copies an input that a graph writes to, and once more into the output. So the host writes
new states after the run, and attention reads the cache as it was before, and the states beside it.
What else reads a written cache still has it written in the graph.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset14 as op
from openvino.frontend.onnx import ConversionExtension

from snapexport.runtime.openvino.operators import Value, identity, ints, optional, scalar, size

Part = tuple[Value, Value, Value | None]
"""Keys, values, and the bias of their scores."""

HIDDEN = -60_000.0
"""Added to hidden scores. fp16 has it; the softmax of a row that sees nothing is not NaN."""


@dataclass(frozen=True)
class Prefix:
    """The first states [H,n,D] of a cache [1,H,T,D]. start: n, int64 [1]."""

    states: Value
    past: Value
    start: Value


@dataclass(frozen=True)
class CacheWrite:
    """A write of new states [B,H,C,D] into a cache [B,H,S,D], from cache slot start [B] on."""

    past: Value
    states: Value
    start: Value


class CacheOperators:
    """The conversions of one graph, whose layers share their masks."""

    def __init__(self, *, dynamic: bool) -> None:
        """dynamic: the device takes computed shapes, so that a chunk pays only for its past."""
        self._dynamic = dynamic
        self._shared: dict[tuple[Any, ...], Value] = {}
        self._writes: dict[Any, CacheWrite] = {}
        self.prefixes: list[Prefix] = []
        """What chunks read of caches that are inputs, up to where another input says."""

    def extensions(self) -> list[ConversionExtension]:
        """Return what OpenVINO's reader needs."""
        return [
            ConversionExtension("TensorScatter", "", self._tensor_scatter),
            ConversionExtension("Attention", "", self._attention),
        ]

    def write_of(self, value: Value) -> CacheWrite | None:
        """The write of a graph's input that made a value; None: another node made it."""
        return self._writes.get(identity(value))

    def _tensor_scatter(self, node: Any) -> list[Value]:
        write = CacheWrite(*(node.get_input(at) for at in range(3)))
        written = _write(write)
        if write.past.get_node().get_type_name() == "Parameter":
            self._writes[identity(written)] = write
        return [written]

    def _attention(self, node: Any) -> list[Value]:
        query, key, value = (node.get_input(at) for at in range(3))
        mask, valid = optional(node, 3), optional(node, 6)
        causal = bool(node.get_attribute("is_causal", 0))
        keys, values = self.write_of(key), self.write_of(value)
        if keys and values and identity(keys.start) == identity(values.start):
            parts = self._written_parts(query, keys, values, mask, valid, causal=causal)
        else:
            rows, slots = size(query, 2), size(key, 2)
            bias = self._bias(query, mask, valid, rows, slots, causal=causal)
            parts = [(key, value, bias)]
        return self._attend(node, query, parts)

    def _written_parts(
        self,
        query: Value,
        keys: CacheWrite,
        values: CacheWrite,
        mask: Value | None,
        valid: Value | None,
        *,
        causal: bool,
    ) -> Sequence[Part]:
        """The parts that attention reads: written caches as they were, and the new states."""
        start = keys.start
        rows, slots, count = size(query, 2), size(keys.past, 2), size(keys.states, 2)
        if causal and rows == count and self._dynamic and size(query, 0) == 1:
            # Its rows are the last valid cache slots, and all before them are seen.
            bias = self._seen_by_chunk(query, mask, start, rows, slots)
            key, value = (self._append(one.past, one.states, start) for one in (keys, values))
            return [(key, value, bias)]
        whole = self._bias(query, mask, valid, rows, slots, causal=causal)
        before, after = self._split(query, whole, start, rows, slots, count)
        return [(keys.past, values.past, before), (keys.states, values.states, after)]

    def _attend(self, node: Any, query: Value, parts: Sequence[Part]) -> list[Value]:
        """Attention to keys and values in several places."""
        batch, heads, rows, width = (size(query, at) for at in range(4))
        kv_heads = size(parts[0][0], 1)
        group = heads // kv_heads
        scale = node.get_attribute("scale", 0.0) or width**-0.5
        softcap = node.get_attribute("softcap", 0.0)
        folded = op.reshape(query, ints(batch, kv_heads, group * rows, width), False)
        biases = [self._fold(bias, kv_heads, group, rows) for *_, bias in parts]
        scaled = op.multiply(folded, scalar(scale, query))
        bias = biases[0] if biases[0] is not None else scalar(0.0, query)
        if len(parts) == 1 and not softcap and bias.get_element_type() != ov.Type.boolean:
            ((key, value, _),) = parts
            one = scalar(1.0, query)
            out = op.scaled_dot_product_attention(scaled, key, value, bias, one, causal=False)
        else:
            scores = [
                _scores(scaled, key, bias, softcap)
                for (key, *_), bias in zip(parts, biases, strict=True)
            ]
            shares = op.softmax(op.concat(scores, -1) if len(parts) > 1 else scores[0], -1)
            out = _weighted_sum(shares, [value for _, value, _ in parts])
        width = size(parts[0][1], 3)
        return [op.reshape(out, ints(batch, heads, rows, width), False).output(0)]

    def _bias(
        self,
        query: Value,
        mask: Value | None,
        valid: Value | None,
        rows: int,
        slots: int,
        *,
        causal: bool,
    ) -> Value | None:
        """The summand of scores: [B,1 or H,1 or rows,slots]. None: nothing is hidden."""
        key = "bias", identity(mask), identity(valid), rows, slots, causal, query.get_element_type()
        return self._share(key, lambda: _bias(query, mask, valid, rows, slots, causal))

    def _seen_by_chunk(
        self, query: Value, mask: Value | None, start: Value, rows: int, slots: int
    ) -> Value:
        """Whether rows that follow `start` positions see each of these, and of themselves.

        A bias only if the mask is of numbers: OpenVINO multiplies, takes the softmax and multiplies
        in one kernel, which waits for memory, and truths have half the bytes.
        """

        def make() -> Value:
            ahead = np.triu(np.full((1, 1, rows, rows), HIDDEN, np.float32), 1)
            own = op.convert_like(op.constant(ahead), query).output(0)
            bias = self._bias(query, mask, None, rows, slots, causal=False)
            if bias is None:
                shape = op.concat([ints(1, 1, rows), start], 0)
                before = op.broadcast(scalar(0.0, query), shape)
            else:
                before = self._prefix(bias, start, axis=3)
                own = op.add(own, _columns(bias, start, rows))
            total = op.concat([before, own], 3)
            if mask is None or mask.get_element_type() == ov.Type.boolean:
                total = op.equal(total, scalar(0.0, query))
            return total.output(0)

        key = "chunk", identity(mask), identity(start), rows, slots, query.get_element_type()
        return self._share(key, make)

    def _split(
        self, query: Value, bias: Value | None, start: Value, rows: int, slots: int, count: int
    ) -> tuple[Value, Value | None]:
        """The bias of the cache as it was, without what is written over, and of the new states."""

        def before() -> Value:
            first = op.reshape(start, ints(-1, 1, 1, 1), False)
            place = op.subtract(ints(*range(slots)), first)
            over = op.logical_and(op.greater_equal(place, ints(0)), op.less(place, ints(count)))
            hidden = op.select(over, scalar(HIDDEN, query), scalar(0.0, query))
            return (hidden if bias is None else op.minimum(hidden, bias)).output(0)

        key = identity(bias), identity(start), rows, slots, count, query.get_element_type()
        after = None
        if bias is not None:
            after = self._share(("after", *key), lambda: _columns(bias, start, count))
        return self._share(("before", *key), before), after

    def _fold(self, bias: Value | None, kv_heads: int, group: int, rows: int) -> Value | None:
        """The bias of folded rows."""
        if bias is None or group == 1 or size(bias, 1) == size(bias, 2) == 1:
            return bias

        def make() -> Value:
            if size(bias, 1) == 1:
                return op.tile(bias, ints(1, 1, group, 1)).output(0)
            return op.reshape(bias, ints(0, kv_heads, group * rows, -1), True).output(0)

        return self._share(("folded", identity(bias), group), make)

    def _append(self, past: Value, new: Value, start: Value) -> Value:
        """The first `start` states of a cache, and new ones: [1,H,start + C,D].

        Joined as [H,T,D]: four dimensions OpenVINO takes for an image's, whose channels it would
        move to the end and back.
        """
        heads, width = size(past, 1), size(past, 3)
        after = op.reshape(new, ints(heads, -1, width), False)

        def before() -> Value:
            whole = op.reshape(past, ints(heads, -1, width), False)
            states = self._prefix(whole, start, axis=1)
            if all(one.get_node().get_type_name() == "Parameter" for one in (past, start)):
                self.prefixes.append(Prefix(states, past, start))
            return states

        first = self._share(("prefix", identity(past), identity(start)), before)
        return op.unsqueeze(op.concat([first, after], 1), ints(0)).output(0)

    def _prefix(self, tensor: Value, count: Value, axis: int) -> Value:
        return op.slice(tensor, ints(0), count, ints(1), ints(axis)).output(0)

    def _share(self, key: tuple[Any, ...], make: Callable[[], Value]) -> Value:
        if key not in self._shared:
            self._shared[key] = make()
        return self._shared[key]


def _write(write: CacheWrite) -> Value:
    """A cache with new states."""
    batch, heads, slots, width = (size(write.past, at) for at in range(4))
    count = size(write.states, 2)
    first = op.reshape(write.start, ints(-1, 1, 1), False)
    begins = op.constant(np.arange(batch * heads, dtype=np.int64).reshape(batch, heads, 1) * slots)
    offsets = op.constant(np.arange(count, dtype=np.int64))
    places = op.reshape(op.add(op.add(begins, first), offsets), ints(-1), False)
    rows = op.reshape(write.past, ints(batch * heads * slots, width), False)
    states = op.reshape(write.states, ints(batch * heads * count, width), False)
    written = op.scatter_update(rows, places, states, ints(0))
    return op.reshape(written, ints(batch, heads, slots, width), False).output(0)


def _bias(
    query: Value, mask: Value | None, valid: Value | None, rows: int, slots: int, causal: bool
) -> Value | None:
    bias: Value | None = None
    if valid is not None or causal:
        end = ints(slots) if valid is None else op.reshape(valid, ints(-1, 1, 1, 1), False)
        if causal:  # a row sees the cache slots up to its own; the last row's is the last valid one
            last = ints(rows) if valid is None else end
            end = op.add(last, op.constant(np.arange(1 - rows, 1)[:, None]))
        seen = op.less(ints(*range(slots)), end)
        bias = op.select(seen, scalar(0.0, query), scalar(HIDDEN, query))
    if mask is not None and mask.get_element_type() == ov.Type.boolean:
        mask = op.select(mask, scalar(0.0, query), scalar(HIDDEN, query))
    if not (given := [one for one in (bias, mask) if one is not None]):
        return None
    total = op.add(*given) if len(given) > 1 else op.convert_like(given[0], query)
    if missing := list(range(4 - len(total.get_output_partial_shape(0)))):
        total = op.unsqueeze(total, ints(*missing))
    # A mask that the graph computes may not know its size. A number of valid slots is every row's.
    rows = rows if causal or mask is not None else 1
    return op.reshape(total, ints(0, 0, rows, slots), True).output(0)


def _scores(query: Value, key: Value, bias: Value | None, softcap: float) -> Value:
    if _is_one(key):
        scores = op.reduce_sum(op.multiply(query, key), ints(-1), True)
    else:
        scores = op.matmul(query, key, False, True)
    if softcap:
        limit = scalar(softcap, query)
        scores = op.multiply(op.tanh(op.divide(scores, limit)), limit)
    if bias is not None and bias.get_element_type() == ov.Type.boolean:
        return op.select(bias, scores, scalar(HIDDEN, query))
    return scores if bias is None else op.add(scores, bias)


def _weighted_sum(shares: Value, values: Sequence[Value]) -> Value:
    """The sum of values in several places, by their shares."""
    if len(values) == 1:  # whose number may be computed
        return op.matmul(shares, values[0], False, False)
    ends = np.cumsum([size(value, 2) for value in values])
    total = None
    for value, end in zip(values, ends, strict=True):
        begin = int(end) - size(value, 2)
        part = op.slice(shares, ints(begin), ints(int(end)), ints(1), ints(3))
        one = _is_one(value)
        product = op.multiply(part, value) if one else op.matmul(part, value, False, False)
        total = product if total is None else op.add(total, product)
    return total


def _is_one(states: Value) -> bool:
    """Whether it is a single token's, which needs no product of matrices."""
    count = states.get_partial_shape()[2]
    return bool(count.is_static and count.get_length() == 1)


def _columns(bias: Value, start: Value, count: int) -> Value:
    """The bias of `count` cache slots from start [B] on: [B,1 or H,rows,count]."""
    # Not a Gather with indices for each row: its code read beyond them, and crashed (2026.4).
    places = op.add(op.reshape(start, ints(-1, 1, 1, 1, 1), False), ints(*range(count)))
    numbers = op.reshape(ints(*range(size(bias, 3))), ints(-1, 1), False)
    columns = op.select(op.equal(numbers, places), op.unsqueeze(bias, ints(4)), scalar(0.0, bias))
    return op.reduce_sum(columns, ints(3)).output(0)
