"""Multiplies a sub-chunk's tokens with each other, for composed_linear_attention.py.

Tensors are [N,B,G,H/G or 1,n,d]. Decays have d = 1, or d = dk where each row of a state has its
own. Sums of decays are products with zeros and ones, so that nothing is cancelled.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from snapexport.graphs.passes.base import fresh, int64s, node

Where = NDArray[Any]
Parts = list[gs.Tensor]


@dataclass(frozen=True)
class Nodes:
    """Appends nodes of one output. Patterns of ones are stored once for a graph."""

    graph: gs.Graph
    patterns: dict[bytes, gs.Constant] = field(default_factory=dict)

    def __call__(self, op: str, *inputs: gs.Tensor, **attrs: Any) -> gs.Tensor:
        return node(self.graph, op, list(inputs), **attrs)[0]

    def ints(self, *values: int) -> gs.Constant:
        """A list for operators such as Reshape."""
        return int64s(self.graph, *values)

    def ones(self, where: Where) -> gs.Constant:
        """1.0 where true, else 0.0."""
        key = np.array(where.shape).tobytes() + where.tobytes()
        if key not in self.patterns:
            name = fresh(self.graph, "ones")
            self.patterns[key] = gs.Constant(name, where.astype(np.float32))
        return self.patterns[key]

    def factors(self, decay: gs.Tensor, where: Where) -> gs.Tensor:
        """exp of sums of decays: row i of those of the tokens l where [i,l] is true."""
        return self("Exp", self("MatMul", self.ones(where), decay))

    def swap_last_axes(self, x: gs.Tensor) -> gs.Tensor:
        """The last two axes in each other's place."""
        return self("Transpose", x, perm=[0, 1, 2, 3, 5, 4])


@dataclass(frozen=True)
class Products:
    """The decayed products of a sub-chunk's n tokens with the keys up to them."""

    nodes: Nodes
    key: gs.Tensor
    decay: gs.Tensor
    rows: int

    def by_head(self, query: gs.Tensor, gain: gs.Tensor | None) -> tuple[gs.Tensor, Parts]:
        """[N,B,G,H/G,n,n]: of queries with keys up to their own, and of keys with those before.

        The latter times gain [N,B,G,H/G,n,1], and a part for each of block_sizes: the products of
        the second of two neighbouring blocks of that size with the first, and 0 elsewhere.
        """
        nodes, at = self.nodes, np.arange(self.rows)
        key_t = nodes.swap_last_axes(self.key)
        between = nodes("Mul", self.decay, nodes.ones(at[:, None] > at))
        decays = nodes.factors(between, at[:, None] >= at)
        shown = nodes("Mul", nodes("MatMul", query, key_t), nodes.ones(at[:, None] >= at))
        whole = nodes("Mul", shown, decays)
        if gain is None:
            return whole, []
        of_keys = nodes("Mul", nodes("MatMul", self.key, key_t), nodes("Mul", decays, gain))
        pairs = [neighbours(self.rows, size) for size in block_sizes(self.rows)]
        return whole, [nodes("Mul", of_keys, nodes.ones(pair)) for pair in pairs]

    def by_channel(self, query: gs.Tensor, gain: gs.Tensor | None) -> tuple[gs.Tensor, Parts]:
        """The same where products sum over channels that decay each by itself.

        Both sides are decayed, from and to the border between two blocks: log2(n) products.
        """
        nodes, at, parts = self.nodes, np.arange(self.rows), []
        with_own = nodes("ReduceSum", nodes("Mul", query, self.key), nodes.ints(-1), keepdims=1)
        whole = nodes("Mul", with_own, nodes.ones(np.eye(self.rows, dtype=bool)))
        keys = None if gain is None else nodes("Mul", self.key, gain)
        for size in block_sizes(self.rows):
            same = at[:, None] // size == at // size
            to_border = nodes.factors(self.decay, same & (at > at[:, None]))
            from_border = nodes.factors(self.decay, same & (at <= at[:, None]))
            key_t = nodes.swap_last_axes(nodes("Mul", self.key, to_border))
            pair = nodes.ones(neighbours(self.rows, size))
            of_query = nodes("MatMul", nodes("Mul", query, from_border), key_t)
            whole = nodes("Add", whole, nodes("Mul", of_query, pair))
            if keys is not None:
                of_keys = nodes("MatMul", nodes("Mul", keys, from_border), key_t)
                parts.append(nodes("Mul", of_keys, pair))
        return whole, parts


def block_sizes(rows: int) -> list[int]:
    """1, 2, 4, ... below the number of tokens."""
    return [1 << power for power in range((rows - 1).bit_length())]


def neighbours(rows: int, size: int) -> Where:
    """Bool [n,n]: token i is in the second, and token j in the first of two blocks of a pair."""
    block = np.arange(rows) // size
    found: Where = (block[:, None] % 2 == 1) & (block == block[:, None] - 1)
    return found


def inverse(nodes: Nodes, parts: Parts, rows: int) -> gs.Tensor:
    """(1 + the sum of parts)^-1, with parts as of Products.

    From the inverses of blocks of b tokens to those of 2b: (a 0; c d)^-1 has -d^-1 c a^-1 below.
    """
    ones, *wider = parts
    found: gs.Tensor = nodes("Sub", nodes.ones(np.eye(rows, dtype=bool)), ones)
    for part in wider:
        below = nodes("MatMul", nodes("MatMul", found, part), found)
        found = nodes("Sub", found, below)
    return found
