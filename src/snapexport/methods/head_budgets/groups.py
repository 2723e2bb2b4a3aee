"""Budgets of KV heads: the file that has them, and the head groups that a build makes of it.

    {"format": "snapexport head budgets 1", "kv_heads": 3,
     "layers": [[40.5, 187.0, 72.5], ...], "calibration": {...}}

`layers` has for each layer the positions that each KV head should keep, and an empty list for a
layer that does not vote. Only their ratio within a layer counts: a build scales them to its K.
`calibration` is for readers: what the numbers come from. Knows no graph.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.model_facts import ModelFacts
from snapexport.contract.slots import Slots
from snapexport.errors import UserError
from snapexport.methods.method import read_calibration

FORMAT = "snapexport head budgets 1"
MOST_BYTES = 16 << 20
STEPS = 8
"""K of a group is a multiple of K / 8: each further size costs a decode step some operators."""

_FORM = "write it as docs/reference/vote-options.md describes"
_ANOTHER = "use head budgets of this model"
_MOST = 1 << 31

Group = tuple[tuple[int, ...], int]
"""KV heads, and the K of each."""


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
        rows = (_row(path, layer, row, kv_heads) for layer, row in enumerate(found["layers"]))
        return cls(kv_heads, tuple(rows))

    @classmethod
    def of(cls, geometry: CacheGeometry, model: ModelFacts) -> "HeadBudget":
        """The budgets that the head groups of a build have."""
        kv_heads, *_ = model.kv_heads
        rows = [[0.0] * kv_heads for _ in range(geometry.slots.num_layers)]
        for one, shape in zip(geometry.slots.caches, geometry.layers, strict=True):
            for head in range(kv_heads) if one.heads is None else one.heads:
                rows[one.layer][head] = float(shape.K)
        return cls(kv_heads, tuple(tuple(row) if any(row) else () for row in rows))

    def text(self, calibration: dict[str, Any]) -> str:
        """The content of a file. calibration: what was measured."""
        layers = [[round(budget, 2) for budget in row] for row in self.layers]
        found = {"format": FORMAT, "kv_heads": self.kv_heads, "calibration": calibration}
        return json.dumps(found | {"layers": layers}) + "\n"

    def require_model(self, model: ModelFacts) -> None:
        """Raise UserError for budgets of another model, or a model whose heads cannot differ."""
        heads, *_ = model.kv_heads
        if heads == 1:
            what = "latent attention" if model.latent else "this model"
            raise UserError(
                f"--head-budget shares K among the KV heads of a layer, and {what} has one",
                "leave it out",
            )
        layers = model.num_hidden_layers
        if (len(self.layers), self.kv_heads) != (layers, heads):
            raise UserError(
                f"the head budgets are of {len(self.layers)} layers with {self.kv_heads} KV heads, "
                f"the model has {layers} layers with {heads}",
                _ANOTHER,
            )
        for layer, (row, own) in enumerate(zip(self.layers, model.layers, strict=True)):
            if bool(row) == bool(own.reach):
                has = "has head budgets, and slides" if row else "has no head budgets"
                raise UserError(f"layer {layer} {has}", _ANOTHER)

    def groups(self, layer: int, K: int, most: int, room: int) -> list[Group]:
        """At most `most` groups of a layer's KV heads, which keep H * K positions at most.

        room: the most eligible positions that a prompt can have.
        """
        row = self.layers[layer]
        wanted = [budget * K * len(row) / sum(row) for budget in row]
        runs = _runs(wanted, most)
        merged: dict[int, list[int]] = {}
        for heads, size in zip(runs, _sizes(runs, wanted, K, room), strict=True):
            merged.setdefault(size, []).extend(heads)
        if len(merged) == 1:
            return [(tuple(range(len(row))), min(K, room))]
        return [(tuple(sorted(heads)), size) for size, heads in merged.items()]


def with_head_groups(
    geometry: CacheGeometry, budget: HeadBudget, model: ModelFacts, most: int
) -> CacheGeometry:
    """A uniform geometry with K shared among the heads of each layer, in `most` groups of them."""
    budget.require_model(model)
    every = tuple(range(model.layer(0).kv_heads))
    groups: list[list[Group]] = []
    for layer, shape in enumerate(geometry.layers):
        room = geometry.L_max - shape.L_sink - shape.L_recent
        split = shape.K > 0 and room > 0
        found = budget.groups(layer, shape.K, most, room) if split else [(every, shape.K)]
        groups.append(found)
    shapes = [shape for shape, own in zip(geometry.layers, groups, strict=True) for _ in own]
    slots = Slots(
        model.num_hidden_layers,
        L_sink=tuple(shape.L_sink for shape in shapes),
        L_recent=tuple(shape.L_recent for shape in shapes),
        K=tuple(K for own in groups for _, K in own),
        head_groups=tuple(tuple(heads for heads, _ in own) for own in groups),
    )
    return replace(geometry, slots=slots)


def _row(path: Path, layer: int, row: Any, kv_heads: int) -> tuple[float, ...]:
    if not isinstance(row, list) or len(row) not in (0, kv_heads):
        raise UserError(f"{path}: layer {layer} has no budgets of {kv_heads} KV heads", _FORM)
    if row and not (all(_is_budget(budget) for budget in row) and any(row)):
        raise UserError(
            f"{path}: layer {layer} has a budget that is not a number from 0 on, or only zeros",
            _FORM,
        )
    return tuple(map(float, row))


def _is_budget(value: Any) -> bool:
    return type(value) in (int, float) and (value == 0 or 1e-3 <= value <= _MOST)


def _runs(wanted: Sequence[float], most: int) -> list[list[int]]:
    """The heads in the order of their budgets, cut where the squares of differences from each
    run's mean add up to least."""
    order = sorted(range(len(wanted)), key=lambda head: (wanted[head], head))
    sums = [0.0, *accumulate(wanted[head] for head in order)]
    squares = [0.0, *accumulate(wanted[head] ** 2 for head in order)]

    def spread(start: int, end: int) -> float:
        return squares[end] - squares[start] - (sums[end] - sums[start]) ** 2 / (end - start)

    best: dict[int, tuple[float, tuple[int, ...]]] = {
        end: (spread(0, end), (0, end)) for end in range(1, len(order) + 1)
    }
    for _ in range(most - 1):
        further = {
            end: [(best[cut][0] + spread(cut, end), (*best[cut][1], end)) for cut in range(1, end)]
            for end in best
        }
        best = {end: min([best[end], *further[end]], key=lambda one: one[0]) for end in best}
    return [order[start:end] for start, end in pairwise(best[len(order)][1])]


def _sizes(runs: Sequence[Sequence[int]], wanted: Sequence[float], K: int, room: int) -> list[int]:
    """K of each run of heads: their mean rounded down to a step, then a step more where it was
    rounded most, while the sum allows it."""
    step = max(1, K // STEPS)
    means = [sum(wanted[head] for head in heads) / len(heads) for heads in runs]
    sizes = [min(int(mean) // step * step, room) for mean in means]
    free = K * len(wanted) - sum(size * len(heads) for size, heads in zip(sizes, runs, strict=True))
    while True:
        fitting = [
            run
            for run, heads in enumerate(runs)
            if len(heads) * step <= free and sizes[run] + step <= room
        ]
        if not fitting:
            return sizes
        run = max(fitting, key=lambda one: means[one] - sizes[one])
        sizes[run] += step
        free -= len(runs[run]) * step
