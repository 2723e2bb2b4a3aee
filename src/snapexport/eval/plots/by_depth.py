"""Accuracy by the needle's depth and the prompt's length, a map a cache."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from snapexport.eval.plots.look import (
    MAP,
    MODES,
    Report,
    broken,
    budgets_in,
    full_in,
    names_in,
)

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
        own = [row for row in rows if (row["contestant"], row["slots"]) == (name, slots)]
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
    caches = [(one["contestant"], one["slots"]) for one in report["contestants"]]
    names, budgets = names_in(report), budgets_in(report)
    if len(budgets) < 2:
        return {cache: divmod(index, COLUMNS) for index, cache in enumerate(caches)}
    full = full_in(report)
    return {
        (name, slots): (names.index(name), 0 if name in full else budgets.index(slots))
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
    return float(np.mean(scores))


def _thousands(tokens: int) -> str:
    return f"{tokens / 1024:g}K" if tokens >= 1024 and tokens % 1024 == 0 else str(tokens)
