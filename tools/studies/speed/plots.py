"""Draws the pictures of the experiments, from their reports."""

from collections.abc import Callable, Iterable
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from snapexport.measure.bench.turns import Row
from snapexport.measure.plots import COLOURS, Pictures, by, lines, look, panels, ticks
from tools.studies.speed.experiments.overhead import MLX_SHARE, PAPER_SHARE


def cluster_by_clients(report: Row) -> Figure:
    """Tokens a second of each deployment, and its median TTFT."""
    figure, (rates, firsts) = panels(2)
    found = report["summary"]
    for index, (name, rows) in enumerate(by(found, "deployment").items()):
        clients = [row["clients"] for row in rows]
        rates.plot(clients, [r["tokens_per_second"] for r in rows], label=name, **look(index))
        firsts.plot(clients, [r["ttft_median"] for r in rows], label=name, **look(index))
    for axes, label in ((rates, "tokens/s, all clients"), (firsts, "TTFT, s")):
        axes.set(xlabel="clients", ylabel=label, ylim=(0, None))
        ticks(axes, (row["clients"] for row in found))
        axes.legend(frameon=False, fontsize=7)
    return figure


def _one(drawn: Callable[[Axes, Row], None], **legend: Any) -> Callable[[Row], Figure]:

    def figure_of(report: Row) -> Figure:
        figure = Figure(figsize=(6.4, 3.6), layout="constrained")
        axes: Axes = figure.subplots()
        drawn(axes, report)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, fontsize=7, **legend)
        return figure

    return figure_of


def _context(axes: Axes, report: Row) -> None:
    caches = by(report["sections"]["decode"], "kv_budget")
    named = {
        f"SnapStream, {budget:,} slots" if budget else "full cache": rows
        for budget, rows in caches.items()
    }
    lines(axes, named)
    axes.set(xlabel="context, tokens", ylabel="ms per decode step", yscale="log")
    _plain(axes.yaxis)


def _equal_memory(axes: Axes, report: Row) -> None:
    requests = {(row["context"], row["cache"]): row for row in report["sections"]["decode"]}
    rows = [
        row | {"batch": requests[row["context"], row["cache"]]["batch"]}
        for row in report["summary"]
    ]
    named = {
        f"{cache} cache" if cache == "full" else f"SnapStream, {cache}": found
        for cache, found in by(rows, "cache").items()
    }
    for bars, found in _bars(axes, named, "context", lambda row: row["tokens_per_second"]):
        axes.bar_label(bars, [str(row["batch"]) for row in found], fontsize=7)
    axes.set(xlabel="prompt, tokens (on the bars: requests)", ylabel="tokens/s")


def _naive(axes: Axes, report: Row) -> None:
    named: dict[str, list[Row]] = {}
    for row in report["sections"]["decode"]:
        named.setdefault(f"{row['target']}, {row['update']}", []).append(row)
    list(_bars(axes, named, "slots", lambda row: 1e3 * row["seconds"]["median"]))
    axes.set(xlabel="cache slots", ylabel="ms per decode step")


def _overhead(axes: Axes, report: Row) -> None:
    """Shares of prefill: builds of the prompt's own length, the longest build, and others'."""
    found = report["summary"]
    longest = max((row["L_max"] for row in found), default=0)
    own = [row for row in found if row["L_max"] == row["prompt"]]
    long = [row for row in found if row["L_max"] == longest]
    for index, (name, rows) in enumerate({"its length": own, f"{longest:,}": long}.items()):
        shares = [100 * row["share"] for row in rows]
        label = f"build for prompts up to {name}"
        axes.plot([row["prompt"] for row in rows], shares, label=label, **look(index))
    others = {"SnapStream's paper, 128K": PAPER_SHARE, "mlx-lm, 95K": MLX_SHARE}
    for index, (name, share) in enumerate(others.items(), 2):
        axes.axhline(100 * share, linestyle=":", color=COLOURS[index], label=name)
    axes.set(xlabel="prompt, tokens", ylabel="compress step, % of prefill", yscale="log")
    ticks(axes, (row["prompt"] for row in found))
    _plain(axes.yaxis)


def _peers(axes: Axes, report: Row) -> None:
    decode = report["sections"]["decode"]
    names = list(by(decode, "system"))[::-1]
    for index, (context, rows) in enumerate(by(decode, "context").items()):
        values = [1e3 * row["seconds"]["median"] for row in rows]
        places = [names.index(row["system"]) for row in rows]
        axes.plot(values, places, label=f"{context:,} tokens", linestyle="", **look(index))
    axes.grid(axis="y", linewidth=0.3)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set(xlabel="ms per decode step", xscale="log")
    _plain(axes.xaxis)


def _host(axes: Axes, report: Row) -> None:
    found = report["summary"][::-1]
    axes.barh([row["sampling"] for row in found], [100 * row["share"] for row in found])
    axes.set(xlabel="Python, % of a decode step")


def _bars(
    axes: Axes, named: dict[str, list[Row]], group: str, height: Callable[[Row], float]
) -> Iterable[tuple[mpl.container.BarContainer, list[Row]]]:
    """A bar for each row, side by side in the groups of a label; yields each name's."""
    groups = list(dict.fromkeys(row[group] for rows in named.values() for row in rows))
    axes.set_xticks(range(len(groups)), [f"{one:,}" for one in groups])
    for index, (name, rows) in enumerate(named.items()):
        offset = 0.8 * (index + 0.5) / len(named) - 0.4
        places = [groups.index(row[group]) + offset for row in rows]
        heights, width = [height(row) for row in rows], 0.8 / len(named)
        yield axes.bar(places, heights, width, label=name, color=COLOURS[index]), rows


def _plain(axis: Axis) -> None:
    """Ticks of a logarithmic axis at 1, 2 and 5, written without powers."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


# Beside the points: within them a legend's own marker reads as one more.
_POINTS = _one(_peers, loc="lower right", bbox_to_anchor=(1, 1), ncols=2)
PICTURES: Pictures = {
    "cluster": {"cluster": ("load", cluster_by_clients)},
    "context": {"context": ("decode", _one(_context))},
    "equal_memory": {"equal_memory": ("decode", _one(_equal_memory))},
    "overhead": {"overhead": ("compress", _one(_overhead))},
    "naive": {"naive": ("decode", _one(_naive))},
    "peers": {"peers": ("decode", _POINTS)},
    "peers1b": {"peers1b": ("decode", _POINTS)},
    "peers_smollm2": {"peers_smollm2": ("decode", _POINTS)},
    "scale1b": {"scale1b": ("decode", _one(_context))},
    "host": {"host": ("host", _one(_host))},
}
