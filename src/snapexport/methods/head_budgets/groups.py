"""Budgets of KV heads: the file that has them, and the head groups that a build makes of it.

    {"format": "snapexport head budgets 1", "kv_heads": 3,
     "layers": [[40.5, 187.0, 72.5], ...], "calibration": {...}}

`layers` has for each layer the positions that each KV head should keep, and an empty list for a
layer that does not vote. Only their ratios count, over the whole model: a build scales them to the
sum of all heads' K. `calibration` is for readers: what the numbers come from. Knows no graph.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.model_facts import ModelFacts
from snapexport.contract.slots import Slots, folded
from snapexport.errors import UserError
from snapexport.methods.method import read_calibration

FORMAT = "snapexport head budgets 1"
MOST_BYTES = 16 << 20
STEP = 16
"""Cache slots of large caches are multiples of it: products of other lengths take longer."""
FLOOR = 8
"""Least K of a head, or a quarter of the mean where that is less."""
SIZES = 16
"""Most sizes of caches in a model: each further one costs a decode step some operators."""

_FORM = "write it as docs/reference/vote-options.md describes"
_ANOTHER = "use head budgets of this model"
_MOST = 1 << 31


class Head(NamedTuple):
    """A KV head that votes, and the K that it should have."""

    layer: int
    head: int
    wanted: float


@dataclass(frozen=True)
class Cluster:
    """Heads that keep as many positions."""

    heads: tuple[Head, ...]

    @property
    def mean(self) -> float:
        """The mean K that they should have."""
        return sum(head.wanted for head in self.heads) / len(self.heads)

    def cost(self, other: "Cluster") -> float:
        """How much the squares of differences from the means grow if both are one (Ward)."""
        a, b = len(self.heads), len(other.heads)
        return a * b / (a + b) * (self.mean - other.mean) ** 2


@dataclass(frozen=True)
class HeadBudget:
    """Positions that each KV head of each layer should keep; () for a layer that does not vote."""

    kv_heads: int
    layers: tuple[tuple[float, ...], ...]

    @classmethod
    def read(cls, path: Path) -> "HeadBudget":
        """Read a file of head budgets. Raises UserError."""
        found = read_calibration(path, MOST_BYTES, FORMAT, {"kv_heads"}, _FORM)
        kv_heads = found["kv_heads"]
        if type(kv_heads) is not int or kv_heads < 1:
            raise UserError(f"{path}: kv_heads is not a whole number above 0", _FORM)
        rows = tuple(_row(path, n, row, kv_heads) for n, row in enumerate(found["layers"]))
        if not any(map(any, rows)):
            raise UserError(f"{path} has no budget above 0", _FORM)
        return cls(kv_heads, rows)

    @classmethod
    def of(cls, geometry: CacheGeometry, model: ModelFacts) -> "HeadBudget":
        """The budgets that the head groups of a build have."""
        counts = model.kv_heads
        rows = [[0.0] * count for count in counts]
        for one, shape in zip(geometry.slots.caches, geometry.layers, strict=True):
            for head in range(counts[one.layer]) if one.heads is None else one.heads:
                rows[one.layer][head] = float(shape.K)
        return cls(max(counts), tuple(tuple(row) if any(row) else () for row in rows))

    def text(self, calibration: dict[str, Any]) -> str:
        """The content of a file. calibration: what was measured."""
        layers = [[round(budget, 2) for budget in row] for row in self.layers]
        found = {"format": FORMAT, "kv_heads": self.kv_heads, "calibration": calibration}
        return json.dumps(found | {"layers": layers}) + "\n"

    def require_model(self, model: ModelFacts) -> None:
        """Raise UserError for budgets of another model."""
        layers, heads = model.num_hidden_layers, max(model.kv_heads)
        if (len(self.layers), self.kv_heads) != (layers, heads):
            raise UserError(
                f"the head budgets are of {len(self.layers)} layers with {self.kv_heads} KV heads, "
                f"the model has {layers} layers with {heads}",
                _ANOTHER,
            )
        for layer, (row, own) in enumerate(zip(self.layers, model.layers, strict=True)):
            votes = own.cache_of == layer and not own.reach
            if len(row) != votes * own.kv_heads:
                has = f"{len(row)} head budgets" if row else "no head budgets"
                votes_by = f"votes with {own.kv_heads} KV heads" if votes else "does not vote"
                raise UserError(f"layer {layer} has {has}, and {votes_by}", _ANOTHER)

    def share(self, layers: Sequence[int], total: int, least: int, room: int) -> list[Head]:
        """The heads of some layers, which should keep `total` positions together.

        Each keeps `least` to `room`; what these bounds take is shared among the others.
        """
        found = [Head(n, head, one) for n in layers for head, one in enumerate(self.layers[n])]
        held: dict[int, float] = {}
        while len(held) < len(found):
            rest = total - sum(held.values())
            free = {n: one.wanted for n, one in enumerate(found) if n not in held}
            whole = sum(free.values())
            scaled = {
                n: one * rest / whole if whole else rest / len(free) for n, one in free.items()
            }
            over = sum(max(0.0, one - room) for one in scaled.values())
            under = sum(max(0.0, least - one) for one in scaled.values())
            beyond = {n: room for n, one in scaled.items() if one >= room and over >= under}
            beyond |= {n: least for n, one in scaled.items() if one <= least and under >= over}
            held |= beyond or scaled
        return [one._replace(wanted=held[n]) for n, one in enumerate(found)]


def with_head_groups(
    geometry: CacheGeometry, budget: HeadBudget, model: ModelFacts, most: int
) -> CacheGeometry:
    """A uniform geometry whose K are shared among all heads, in `most` groups of a layer's heads.

    The sum of all heads' K stays, but for what rounding to SIZES sizes leaves.
    """
    budget.require_model(model)
    shapes = geometry.shapes
    rooms = {n: geometry.L_max - one.L_sink - one.L_recent for n, one in shapes.items()}
    voting = [n for n, shape in shapes.items() if shape.K > 0 and rooms[n] > 0]
    sizes = dict[tuple[int, int], int]()
    if voting:
        room, K = min(rooms[n] for n in voting), max(shapes[n].K for n in voting)
        total = sum(shapes[n].K * model.kv_heads[n] for n in voting)
        heads = budget.share(voting, total, min(FLOOR, max(1, K // 4), room), room)
        for cluster, size in _sizes_of(_clusters(heads, most), total, room, geometry.L_max - room):
            sizes |= {(one.layer, one.head): size for one in cluster.heads}
    groups = [_groups_of(layer, model.kv_heads[layer], sizes) for layer in range(len(model.layers))]
    caches = [(shapes[n], K) for n, own in enumerate(groups) if n in shapes for K in own or [0]]
    slots = Slots(
        model.num_hidden_layers,
        L_sink=folded([shape.L_sink for shape, _ in caches]),
        L_recent=folded([shape.L_recent for shape, _ in caches]),
        K=folded([K for _, K in caches]),
        head_groups=tuple(
            tuple(own.values()) if own else (tuple(range(count)),) * (n in shapes)
            for n, (own, count) in enumerate(zip(groups, model.kv_heads, strict=True))
        ),
        cache_of=geometry.slots.cache_of,
        chunk=folded([shape.chunk for shape, _ in caches]),
    )
    return replace(geometry, slots=slots)


def _groups_of(
    layer: int, kv_heads: int, sizes: dict[tuple[int, int], int]
) -> dict[int, tuple[int, ...]]:
    """A layer's KV heads by their K, which sizes has by layer and head; empty if none votes."""
    found: dict[int, tuple[int, ...]] = {}
    for head in range(kv_heads):
        if (size := sizes.get((layer, head))) is not None:
            found[size] = (*found.get(size, ()), head)
    return dict(sorted(found.items()))


def _row(path: Path, layer: int, row: Any, kv_heads: int) -> tuple[float, ...]:
    if not isinstance(row, list) or len(row) > kv_heads:
        raise UserError(f"{path}: layer {layer} has no budgets of {kv_heads} KV heads", _FORM)
    if not all(_is_budget(budget) for budget in row):
        raise UserError(f"{path}: layer {layer} has a budget that is not a number from 0 on", _FORM)
    return tuple(map(float, row))


def _is_budget(value: Any) -> bool:
    return type(value) in (int, float) and (value == 0 or 1e-3 <= value <= _MOST)


def _clusters(heads: Sequence[Head], most: int) -> list[Cluster]:
    """Heads of like K: at most `most` clusters of a layer's, and SIZES of all."""
    by_layer = dict[int, list[Cluster]]()
    for head in heads:
        by_layer.setdefault(head.layer, []).append(Cluster((head,)))
    found = [one for own in by_layer.values() for one in _merge(own, most)]
    return _merge(found, SIZES)


def _merge(clusters: Iterable[Cluster], most: int) -> list[Cluster]:
    """At most `most` clusters, by joining neighbours that differ least."""
    found = sorted(clusters, key=lambda one: (one.mean, one.heads[0]))
    while len(found) > most:
        costs = [a.cost(b) for a, b in pairwise(found)]
        at = costs.index(min(costs))
        found[at : at + 2] = [Cluster(found[at].heads + found[at + 1].heads)]
    return found


def _sizes_of(
    clusters: Sequence[Cluster], total: int, room: int, beside: int
) -> Iterator[tuple[Cluster, int]]:
    """Each cluster's K: its mean rounded down, then a step more where most was lost, while the sum
    allows it. beside: the cache slots of sinks and ring."""
    step = STEP if total >= 8 * STEP * sum(len(one.heads) for one in clusters) else 1
    sizes = [min(int(one.mean + 1e-6 + beside) // step * step - beside, room) for one in clusters]
    sizes = [one if one > 0 else one + step for one in sizes]
    counts = [len(one.heads) for one in clusters]
    free = total - sum(size * count for size, count in zip(sizes, counts, strict=True))
    while fitting := [
        n for n, count in enumerate(counts) if count * step <= free and sizes[n] + step <= room
    ]:
        n = max(fitting, key=lambda one: clusters[one].mean - sizes[one])
        sizes[n] += step
        free -= counts[n] * step
    return zip(clusters, sizes, strict=True)
