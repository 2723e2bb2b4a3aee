"""Accuracy against the slots of the cache."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, NullLocator, ScalarFormatter

from snapexport.eval.plots.look import (
    MODES,
    Report,
    broken,
    budgets_in,
    compressing_in,
    full_in,
    names_in,
)
from snapexport.plots import COLOURS, MARKERS


def accuracy_by_budget(report: Report) -> Figure:
    """Mean accuracy over tasks and lengths against the slots of the cache, a panel a mode."""
    modes = report["options"]["modes"]
    legend = 0.09 * max(len(line) for name in names_in(report) for line in broken(name).split("\n"))
    figure = Figure(figsize=(3.2 * len(modes) + 1 + legend, 3.2), layout="constrained")
    panels = figure.subplots(1, len(modes), sharey=True, squeeze=False)[0]
    for axes, mode in zip(panels, modes, strict=True):
        rows = [row for row in report["results"] if row["mode"] == mode]
        _draw_budgets(axes, rows, report)
        axes.set(title=MODES[mode], xlabel="slots per KV head", ylim=(-0.03, 1.03))
    panels[0].set_ylabel("accuracy")
    panels[-1].legend(loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False)
    return figure


def _draw_budgets(axes: Axes, rows: list[Report], report: Report) -> None:
    budgets = budgets_in(report)
    for name in names_in(report):
        label = broken(name)
        if name in full_in(report):
            axes.axhline(_mean(rows, name), color="0.4", linestyle="--", linewidth=1, label=label)
            continue
        index = compressing_in(report).index(name)
        scores = [_mean(rows, name, slots) for slots in budgets]
        colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]
        axes.plot(budgets, scores, color=colour, marker=marker, markersize=4, label=label)
    if budgets:
        axes.set_xscale("log", base=2)
        axes.set_xticks(budgets)
        axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_minor_formatter(NullFormatter())


def _mean(rows: list[Report], name: str, slots: int | None = None) -> float:
    """Of the contestant's scores at a budget, or at any."""
    scores = [r["score"] for r in rows if r["contestant"] == name and slots in (None, r["slots"])]
    return float(np.mean(scores))
