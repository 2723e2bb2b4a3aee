"""The vote's hit rate by layer and decoded token: SnapKV's Figure 2."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from snapexport.eval.plots.look import MAP, Report, broken, budgets_in, compressing_in
from snapexport.plots import COLOURS, MARKERS


def hit_rate(report: Report) -> Figure:
    """SnapKV's Figure 2: the share of looked-at eligible that the vote kept.

    Above by layer; below by layer and decoded token, a row a policy, a column a budget.
    """
    rates = [rate for rate in report["hit_rate"] if _was_seen(rate)]
    names = list(dict.fromkeys(rate["contestant"] for rate in rates))
    budgets = budgets_in(report)
    maps = len(names) * (1.1 + 0.15 * max(broken(name).count("\n") + 1 for name in names))
    figure = Figure(figsize=(2.4 * len(budgets) + 4, 2.4 + maps), layout="constrained")
    parts: Any = figure.subfigures(2, 1, height_ratios=[2.4, maps])
    above, below = parts
    _draw_layers(above.subplots(), rates, compressing_in(report), budgets)
    panels = below.subplots(len(names), len(budgets), sharex=True, sharey=True, squeeze=False)
    for rate in rates:
        axes = panels[names.index(rate["contestant"]), budgets.index(rate["slots"])]
        image = _draw_steps(axes, rate)
    below.colorbar(image, ax=panels, label="hit rate")
    below.supxlabel("decoded token", fontsize=9)
    below.supylabel("layer", fontsize=9)
    return figure


def _draw_layers(axes: Axes, rates: list[Report], names: list[str], budgets: list[int]) -> None:
    """Colours tell policies, markers tell budgets."""
    for rate in rates:
        axes.plot(
            range(len(rate["by_layer"])),
            _numbers(rate["by_layer"]),
            color=COLOURS[names.index(rate["contestant"]) % len(COLOURS)],
            marker=MARKERS[budgets.index(rate["slots"]) % len(MARKERS)],
            markersize=4,
            label=_name(rate),
        )
    theta = rates[0]["theta"]
    axes.set(xlabel="layer", ylabel="hit rate", ylim=(-0.03, 1.03))
    axes.set_title(f"kept by the vote, of what has attention above {theta}")
    axes.set_xlim(-0.5, len(rates[0]["by_layer"]) - 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False, fontsize=7)


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
    return f"{broken(rate['contestant'])}, {rate['slots']} slots"


def has_rates(report: Report) -> bool:
    """Whether anything was looked at at all."""
    return any(_was_seen(rate) for rate in report["hit_rate"])


def _was_seen(rate: Report) -> bool:
    return any(value is not None for value in rate["by_layer"])


def _numbers(values: Sequence[float | None]) -> list[float]:
    return [np.nan if value is None else value for value in values]
