"""Writes linear attention with a state as standard operators.

One node reads the past state, and what it writes is elsewhere: the present state may take the past
one's buffer in a runtime that runs nodes in turn.

Several tokens are matrix products, sub-chunk by sub-chunk. In a sub-chunk of n tokens, with G[i]
the sum of decays up to token i and S the state before it, the rows u that are added to the state
solve a triangular system; the rest are products:

    A[i,j] = beta[i] exp(G[i] - G[j]) key[i].key[j]     for j < i
    P[i,j] = exp(G[i] - G[j]) query[i].key[j]           for j <= i
    (1 + A) U = beta (V - exp(G) K S)
    output = exp(G) Q S + P U
    next S = exp(G[n]) S + (exp(G[n] - G) K)^T U

No exponent is above 0. One node reads the past state, with the first token's decay: the others of
a sub-chunk begin after it. The inverse of 1 + A is made of those of its blocks, whose values are
bounded as the recurrence's are. A series in powers of A loses all digits, for example if all keys
are equal.
"""

from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from snapexport.graphs.passes.base import fresh, node
from snapexport.graphs.targets.attention import scale_query
from snapexport.graphs.targets.chunk_products import Nodes, Products, inverse
from snapexport.graphs.targets.linear_attention import LinearParts, linear_attentions

LARGEST = 64
"""Most tokens of a sub-chunk."""


@dataclass(frozen=True)
class _SubChunk:
    """Tensors of one sub-chunk, or of all before they are split; [1 or N,B,G,H/G or 1,.,.].

    query, key: what reads the state. key_t: what writes it. value: times beta. products: P, solved:
    (1 + A)^-1. first: the first token's decay, rest: the others', of the state. Factors of rows:
    key_gain, query_gain, write_gain. None: none.
    """

    query: gs.Tensor
    key_t: gs.Tensor
    value: gs.Tensor
    products: gs.Tensor
    first: gs.Tensor
    rest: gs.Tensor
    key: gs.Tensor | None
    solved: gs.Tensor | None
    key_gain: gs.Tensor | None
    query_gain: gs.Tensor | None
    write_gain: gs.Tensor | None

    def after(self, nodes: Nodes, state: gs.Tensor) -> tuple[gs.Tensor, gs.Tensor]:
        """(the state after the sub-chunk, its output)."""
        decayed, update = nodes("Mul", state, self.first), self.value
        if self.solved is not None:
            known = nodes("Mul", nodes("MatMul", self.key, decayed), self.key_gain)
            update = nodes("MatMul", self.solved, nodes("Sub", self.value, known))
        read = _times(nodes, nodes("MatMul", self.query, decayed), self.query_gain)
        output = nodes("Add", read, nodes("MatMul", self.products, update))
        added = nodes("MatMul", self.key_t, _times(nodes, update, self.write_gain))
        return nodes("Add", nodes("Mul", decayed, self.rest), added), output


def _times(nodes: Nodes, x: gs.Tensor, factor: gs.Tensor | None) -> gs.Tensor:
    return x if factor is None else nodes("Mul", x, factor)


@dataclass(eq=False)
class ChunkedRecurrence:
    """The nodes of one marker, for N sub-chunks of n tokens: at most `largest`.

    Tensors of tokens are [N,B,G,H/G or 1,n,d]. Zeros fill the last sub-chunk: they change no state.
    """

    nodes: Nodes
    parts: LinearParts
    largest: int

    def __post_init__(self) -> None:
        self.count = -(-self.parts.tokens // self.largest)
        self.rows = -(-self.parts.tokens // self.count)
        self.shared = self.parts.heads // self.parts.groups

    def write(self) -> None:
        """Append the nodes."""
        parts, nodes = self.parts, self.nodes
        by_group = (1, parts.batch, parts.groups, self.shared, parts.key_dim, parts.value_dim)
        state, outputs = nodes("Reshape", parts.past, nodes.ints(*by_group)), []
        for one in self._split(self._all()):
            state, output = one.after(nodes, state)
            outputs.append(output)
        shape = nodes.ints(*parts.past.shape)
        node(nodes.graph, "Reshape", [state, shape], [parts.present])
        self._join(outputs)

    def _all(self) -> _SubChunk:
        parts, nodes, by_channel = self.parts, self.nodes, self.parts.by_channel
        query = self._tiles(scale_query(nodes.graph, parts.query, parts.scale), 1)
        key, value = self._tiles(parts.key, 1), self._tiles(parts.value, self.shared)
        decay = self._tiles(parts.decay, self.shared)
        at = np.arange(self.rows)
        read = nodes.factors(decay, (at > 0) & (at <= at[:, None]))
        write = nodes.factors(decay, at > at[:, None])
        beta = None if parts.beta is None else self._tiles(parts.beta, self.shared)
        with_keys = Products(nodes, key, decay, self.rows)
        choose = with_keys.by_channel if by_channel else with_keys.by_head
        products, of_keys = choose(query, beta)
        return _SubChunk(
            query=nodes("Mul", query, read) if by_channel else query,
            key_t=nodes.swap_last_axes(nodes("Mul", key, write) if by_channel else key),
            value=value if beta is None else nodes("Mul", value, beta),
            products=products,
            first=nodes("Exp", self._of_state(decay, 0)),
            rest=self._of_state(read, self.rows - 1),
            key=nodes("Mul", key, read) if by_channel else key,
            solved=None if beta is None else inverse(nodes, of_keys, self.rows),
            key_gain=beta if by_channel or beta is None else nodes("Mul", beta, read),
            query_gain=None if by_channel else read,
            write_gain=None if by_channel else write,
        )

    def _of_state(self, x: gs.Tensor, row: int) -> gs.Tensor:
        """A row [..,n,d] as a factor of each row of a state, [..,d,1]."""
        ends = [self.nodes.ints(n) for n in (row, row + 1, 4)]
        return self.nodes.swap_last_axes(self.nodes("Slice", x, *ends))

    def _tiles(self, x: gs.Tensor, heads: int) -> gs.Tensor:
        """[B,C,G*heads,d] or [B,C,G*heads] as [N,B,G,heads,n,d]."""
        nodes, (batch, tokens, *rest) = self.nodes, x.shape
        if missing := self.count * self.rows - tokens:
            zeros = nodes.ones(np.zeros((batch, missing, *rest), bool))
            x = nodes("Concat", x, zeros, axis=1)
        width = rest[1] if len(rest) > 1 else 1
        shape = (batch, self.count, self.rows, self.parts.groups, heads, width)
        apart = nodes("Reshape", x, nodes.ints(*shape))
        return nodes("Transpose", apart, perm=[1, 0, 3, 4, 2, 5])

    def _split(self, whole: _SubChunk) -> list[_SubChunk]:
        columns = {name: self._apart(x) for name, x in vars(whole).items()}
        return [
            _SubChunk(**{name: column[at] for name, column in columns.items()})
            for at in range(self.count)
        ]

    def _apart(self, x: gs.Tensor | None) -> list[gs.Tensor | None]:
        if x is None or self.count == 1:
            return [x] * self.count
        graph = self.nodes.graph
        each = [gs.Variable(fresh(graph, "sub_chunk")) for _ in range(self.count)]
        return node(graph, "Split", [x], each, axis=0, num_outputs=self.count)

    def _join(self, outputs: list[gs.Tensor]) -> None:
        parts, nodes, padded = self.parts, self.nodes, self.count * self.rows
        whole = nodes("Concat", *outputs, axis=0)
        in_order = nodes("Transpose", whole, perm=[1, 0, 4, 2, 3, 5])
        shape = nodes.ints(parts.batch, padded, parts.heads, parts.value_dim)
        ends = [nodes.ints(n) for n in (0, parts.tokens, 1)]
        tokens = nodes("Reshape", in_order, shape)
        node(nodes.graph, "Slice", [tokens, *ends], [parts.output])


@dataclass(frozen=True)
class ComposedLinearAttention:
    """Replaces every marker of linear attention.

    rows: most tokens of a sub-chunk with a beta. A CPU is faster with fewer: the triangular system
    grows with their square.
    """

    rows: int = LARGEST

    def apply(self, graph: gs.Graph) -> None:
        nodes = Nodes(graph)
        for parts in linear_attentions(graph):
            if parts.tokens > 1:
                rows = LARGEST if parts.beta is None else self.rows
                ChunkedRecurrence(nodes, parts, rows).write()
            else:
                _step(nodes, parts)


def _step(nodes: Nodes, parts: LinearParts) -> None:
    """One token: rows [B,H,1,d], and columns [B,H,d,1] for the outer product and the decay."""
    as_rows = nodes.ints(parts.batch, parts.heads, 1, -1)
    as_columns = nodes.ints(parts.batch, parts.heads, -1, 1)
    queries = parts.by_value_head(nodes.graph, scale_query(nodes.graph, parts.query, parts.scale))
    keys = parts.by_value_head(nodes.graph, parts.key)
    value = nodes("Reshape", parts.value, as_rows)
    decay = nodes("Exp", nodes("Reshape", parts.decay, as_columns))
    state = nodes("Mul", parts.past, decay)
    if parts.beta is not None:
        known = nodes("MatMul", nodes("Reshape", keys, as_rows), state)
        value = nodes("Mul", nodes("Sub", value, known), nodes("Reshape", parts.beta, as_columns))
    added = nodes("Mul", nodes("Reshape", keys, as_columns), value)
    node(nodes.graph, "Add", [state, added], [parts.present])
    read = nodes("MatMul", nodes("Reshape", queries, as_rows), parts.present)
    shape = nodes.ints(parts.batch, 1, parts.heads, parts.value_dim)
    node(nodes.graph, "Reshape", [read, shape], [parts.output])
