"""Draws an evaluation's report as pictures, PNG and SVG each.

Knows only the report: it measures nothing.
"""

import math
import re
from collections.abc import Collection, Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from snapexport.measure.plots import (
    COLOURS,
    MARKERS,
    by,
    legend_beside,
    look,
    panels,
    write,
)

Report = dict[str, Any]

MAP = "viridis"
MODES = {
    "aware": "question in the prompt",
    "agnostic": "question after compression",
    "late": "asked again later",
}
NAME_WIDTH = 24
"""Characters after which a name is broken, if it can be."""


def draw(report: Report, directory: Path) -> list[str]:
    """Write every picture that the report has data for, of tasks that count; the files' names."""
    return write(_pictures(report), directory)


def _pictures(report: Report) -> Iterator[tuple[str, Figure]]:
    report = report | {"results": [row for row in report["results"] if row["counts"]]}
    if report["results"]:
        yield "accuracy_by_budget", accuracy_by_budget(report)
        for mode in by(report["results"], "mode"):
            yield f"depth_by_length_{mode}", depths(report, mode)
    if report["continuations"]:
        yield "loss_by_slots", loss_by_slots(report)
    if any(map(_was_seen, report["hit_rate"])):
        yield "hit_rate", hit_rate(report)


def names_in(report: Report) -> list[str]:
    """The systems, each once, in the order of the report."""
    return list(dict.fromkeys(row["system"] for row in report["systems"]))


def compressing_in(report: Report) -> list[str]:
    """Those that keep less than all; their order gives them the same colours in all pictures."""
    return list(dict.fromkeys(o["system"] for o in report["systems"] if o["policy"] != "full"))


def budgets_in(report: Report) -> list[int]:
    """Cache slots of the compressing systems, ascending."""
    return sorted({row["slots"] for row in report["systems"] if row["policy"] != "full"})


def broken(name: str) -> str:
    """A name in lines of NAME_WIDTH, broken only after its colon and commas."""
    lines = [""]
    for part in re.findall(r"[^:,]+[:,]?", name):
        if lines[-1] and len(lines[-1] + part) > NAME_WIDTH:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def accuracy_by_budget(report: Report) -> Figure:
    """Mean accuracy over tasks and lengths against the slots of the cache, a panel a mode."""
    modes = by(report["results"], "mode")
    figure, drawn = _panels_of_slots(report, modes, "accuracy")
    for axes, mode in zip(drawn, modes, strict=True):
        _draw_budgets(axes, modes[mode], report)
        axes.set(title=MODES[mode], ylim=(-0.03, 1.03))
    legend_beside(drawn[-1])
    return figure


def _panels_of_slots(
    report: Report, titles: Collection[object], label: str, width: float = 3.2
) -> tuple[Figure, list[Axes]]:
    """A panel for each title, with room for a legend of the systems' names."""
    names = [line for name in names_in(report) for line in broken(name).split("\n")]
    figure, drawn = panels(len(titles), width, 1 + 0.09 * max(map(len, names)), sharey=True)
    for axes in drawn:
        axes.set(xlabel="cache slots per KV head")
    drawn[0].set_ylabel(label)
    return figure, drawn


def _set_slots(axes: Axes, budgets: list[int], rotation: int = 0) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(budgets, [str(budget) for budget in budgets], rotation=rotation)
    axes.minorticks_off()


def _draw_budgets(axes: Axes, rows: list[Report], report: Report) -> None:
    budgets, compressing = budgets_in(report), compressing_in(report)
    for name in names_in(report):
        label = broken(name)
        if name not in compressing:
            axes.axhline(_mean(rows, name), color="0.4", linestyle="--", linewidth=1, label=label)
            continue
        scores = [_mean(rows, name, slots) for slots in budgets]
        axes.plot(budgets, scores, label=label, **look(compressing.index(name)))
    if budgets:
        _set_slots(axes, budgets)


def _mean(rows: list[Report], name: str, slots: int | None = None) -> float:
    """The mean of a system's scores at a budget, or at any."""
    scores = [r["score"] for r in rows if r["system"] == name and slots in (None, r["slots"])]
    return float(np.mean(scores)) if scores else math.nan


def loss_by_slots(report: Report) -> Figure:
    """Log likelihood lost on documents against the slots of the cache, a panel a length."""
    lengths = by(sorted(report["continuations"], key=lambda row: int(row["length"])), "length")
    figure, drawn = _panels_of_slots(report, lengths, "nats a token lost", width=2.6)
    for axes, (length, rows) in zip(drawn, lengths.items(), strict=True):
        for index, name in enumerate(compressing_in(report)):
            own = [row for row in rows if row["system"] == name]
            axes.errorbar(
                [row["slots"] for row in own],
                [row["loss"] for row in own],
                [row["loss_stderr"] or 0 for row in own],
                label=broken(name),
                **look(index),
            )
        budgets = [slots for slots in budgets_in(report) if slots < length]
        _set_slots(axes, budgets, rotation=90)
        axes.axhline(0, color="0.4", linestyle="--", linewidth=1)
        axes.set(title=f"{length} tokens")
    legend_beside(drawn[-1])
    return figure


COLUMNS = 5
"""Maps side by side, where there is one budget."""


def depths(report: Report, mode: str) -> Figure:
    """Accuracy by the needle's depth and the prompt's length, mean over tasks, a map a cache."""
    rows = [row for row in report["results"] if row["mode"] == mode]
    places = _places(report)
    lines, columns = (max(place) + 1 for place in zip(*places.values(), strict=True))
    title_lines = 2 + max(broken(name).count("\n") for name in names_in(report))
    size = 1.9 * columns + 1.4, (1.6 + 0.15 * title_lines) * lines + 0.6
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    for axes in panels.flat:
        axes.axis("off")
    for (name, slots), (line, column) in places.items():
        own = [row for row in rows if (row["system"], row["slots"]) == (name, slots)]
        axes = panels[line, column]
        axes.axis("on")
        image = _draw_map(axes, own, report["options"])
        axes.set_title(f"{broken(name)}\n{slots} slots", fontsize=8)
        axes.tick_params(labelbottom=(line + 1, column) not in places.values())
    figure.colorbar(image, ax=panels, label="accuracy", shrink=0.8)
    figure.supxlabel("prompt, tokens", fontsize=9)
    figure.supylabel("depth of the needle", fontsize=9)
    figure.suptitle(MODES[mode], fontsize=10)
    return figure


def _places(report: Report) -> dict[tuple[str, int], tuple[int, int]]:
    """Line and column of each cache: a line a policy, or with one budget all in a row."""
    caches = [(row["system"], row["slots"]) for row in report["systems"]]
    names, budgets = names_in(report), budgets_in(report)
    if len(budgets) < 2:
        return {cache: divmod(index, COLUMNS) for index, cache in enumerate(caches)}
    compressing = compressing_in(report)
    return {
        (name, slots): (names.index(name), budgets.index(slots) if name in compressing else 0)
        for name, slots in caches
    }


def _draw_map(axes: Axes, rows: list[Report], options: Report) -> Any:
    lengths, places = options["lengths"], sorted(set(options["depths"]))
    cells = np.array([[_at(rows, length, depth) for length in lengths] for depth in places])
    image = axes.imshow(cells, vmin=0, vmax=1, cmap=MAP, aspect="auto")
    axes.set_xticks(range(len(lengths)), [_thousands(length) for length in lengths])
    axes.set_yticks(range(len(places)), [f"{place:g}" for place in places])
    axes.spines[:].set_visible(False)
    for (y, x), score in np.ndenumerate(cells):
        colour = "black" if score > 0.6 else "white"
        axes.text(x, y, f"{score:.2f}", ha="center", va="center", color=colour, fontsize=7)
    return image


def _at(rows: list[Report], length: int, depth: float) -> float:
    scores = [row["by_depth"][str(depth)] for row in rows if row["length"] == length]
    return float(np.mean(scores)) if scores else math.nan


def _thousands(tokens: int) -> str:
    return f"{tokens / 1024:g}K" if tokens >= 1024 and tokens % 1024 == 0 else str(tokens)


def hit_rate(report: Report) -> Figure:
    """SnapKV's Figure 2: the share of the positions looked at that the vote kept.

    Above by layer; below by layer and decoded token, a row a policy, a column a budget.
    """
    rates = [rate for rate in report["hit_rate"] if _was_seen(rate)]
    names = list(dict.fromkeys(rate["system"] for rate in rates))
    budgets = budgets_in(report)
    maps = len(names) * (1.1 + 0.15 * max(broken(name).count("\n") + 1 for name in names))
    figure = Figure(figsize=(2.4 * len(budgets) + 4, 2.4 + maps), layout="constrained")
    parts: Any = figure.subfigures(2, 1, height_ratios=[2.4, maps])
    above, below = parts
    _draw_layers(above.subplots(), rates, compressing_in(report), budgets)
    panels = below.subplots(len(names), len(budgets), sharex=True, sharey=True, squeeze=False)
    for rate in rates:
        axes = panels[names.index(rate["system"]), budgets.index(rate["slots"])]
        image = _draw_steps(axes, rate)
    below.colorbar(image, ax=panels, label="hit rate")
    below.supxlabel("decoded token", fontsize=9)
    below.supylabel("layer", fontsize=9)
    return figure


def _draw_layers(axes: Axes, rates: list[Report], names: list[str], budgets: list[int]) -> None:
    """A colour for each policy and a marker for each budget, which keeps the legend short."""
    colours, markers = dict(zip(names, cycle(COLOURS))), dict(zip(budgets, cycle(MARKERS)))
    for rate in rates:
        axes.plot(
            range(len(rate["by_layer"])),
            _numbers(rate["by_layer"]),
            color=colours[rate["system"]],
            marker=markers[rate["slots"]],
            markersize=4,
        )
    seen, slots = ({rate[key] for rate in rates} for key in ("system", "slots"))
    for name in (name for name in names if name in seen):
        axes.plot([], color=colours[name], label=broken(name))
    for count in (budget for budget in budgets if budget in slots):
        axes.plot([], color="black", marker=markers[count], ls="", ms=4, label=f"{count} slots")
    theta = rates[0]["theta"]
    axes.set(xlabel="layer", ylabel="hit rate", ylim=(-0.03, 1.03))
    axes.set_title(f"kept by the vote, of what has attention above {theta}")
    axes.set_xlim(-0.5, len(rates[0]["by_layer"]) - 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend_beside(axes, fontsize=7)


def _draw_steps(axes: Axes, rate: Report) -> Any:
    """Layers down, decoded tokens across; white where nothing was looked at."""
    table = np.array([_numbers(row) for row in rate["by_layer_and_step"]])
    watched = np.flatnonzero(~np.isnan(table).all(0))
    table = table[:, : watched[-1] + 1]
    extent = (0.5, table.shape[1] + 0.5, len(table) - 0.5, -0.5)
    image = axes.imshow(table, vmin=0, vmax=1, cmap=MAP, aspect="auto", extent=extent)
    axes.set_title(_name(rate), fontsize=8)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    return image


def _name(rate: Report) -> str:
    return f"{broken(rate['system'])}, {rate['slots']} slots"


def _was_seen(rate: Report) -> bool:
    """Whether anything was looked at at all."""
    return any(value is not None for value in rate["by_layer"])


def _numbers(values: Sequence[float | None]) -> list[float]:
    return [np.nan if value is None else value for value in values]
