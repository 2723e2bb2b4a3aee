"""A picture of each experiment, from its JSON alone."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from snapexport.plots import COLOURS, MARKERS, STYLE

from . import equal_memory, host, overhead
from .turns import Row

Report = dict[str, Any]


def draw(name: str, directory: Path) -> Path:
    """`NAME.png` beside the JSON."""
    report = json.loads((directory / f"{name}.json").read_text())
    path = directory / f"{name}.png"
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 3.6), layout="constrained")
        _DRAWN[name](report, figure.subplots())
        figure.savefig(path, bbox_inches="tight")
    return path


def _context(report: Report, axes: Axes) -> None:
    """Lines over contexts, with quartiles and floors, both axes in powers."""
    for index, budget in enumerate(dict.fromkeys(row["kv_budget"] for row in report["decode"])):
        rows = [row for row in report["decode"] if row["kv_budget"] == budget]
        name, look = f"SnapStream, {budget:,} slots" if budget else "full cache", _look(index)
        at = [row["context"] for row in rows]
        low, middle, high = (
            [1e3 * row["seconds"][key] for row in rows] for key in ("q1", "median", "q3")
        )
        axes.plot(at, middle, label=name, **look)
        axes.fill_between(at, low, high, color=look["color"], alpha=0.2, linewidth=0)
        floors = [1e3 * row["floor"]["seconds"] for row in rows if row["floor"]]
        if len(floors) == len(at):
            axes.plot(at, floors, "--", color=look["color"], linewidth=1, label=f"{name}, floor")
    axes.set(xlabel="context, tokens", ylabel="ms per decode step", yscale="log")
    _ticks(axes, [row["context"] for row in report["decode"]])
    _plain(axes.yaxis)
    axes.legend(frameon=False, fontsize=7)


def _equal_memory(report: Report, axes: Axes) -> None:
    """Bars of tokens a second for each prompt, with the number of requests on them."""
    found = equal_memory.summary(report)
    batches = {(row["context"], row["cache"]): row["batch"] for row in report["decode"]}
    kinds = list(dict.fromkeys(row["cache"] for row in found))
    for index, kind in enumerate(kinds):
        rows = [row for row in found if row["cache"] == kind]
        name = f"{kind} cache" if kind == equal_memory.FULL.name else f"SnapStream, {kind}"
        values = [row["tokens_per_second"] for row in rows]
        bars = axes.bar(_places(len(rows), index, len(kinds)), values, 0.8 / len(kinds), label=name)
        for bar in bars:
            bar.set_color(COLOURS[index])
        axes.bar_label(bars, [str(batches[row["context"], kind]) for row in rows], fontsize=7)
    _groups(axes, [f"{row['context']:,}" for row in found if row["cache"] == kinds[0]])
    axes.set(xlabel="prompt, tokens (on the bars: requests)", ylabel="tokens/s")
    axes.legend(frameon=False, fontsize=7)


def _overhead(report: Report, axes: Axes) -> None:
    """Shares of prefill: builds of the prompt's own length, the longest build, and others'."""
    found = overhead.summary(report)
    longest = max(row["L_max"] for row in found)
    own = [row for row in found if row["L_max"] == row["prompt"]]
    long = [row for row in found if row["L_max"] == longest]
    for index, (name, rows) in enumerate({"its length": own, f"{longest:,}": long}.items()):
        shares = [100 * row["share"] for row in rows]
        label = f"build for prompts up to {name}"
        axes.plot([row["prompt"] for row in rows], shares, label=label, **_look(index))
    others = {"SnapStream's paper, 128K": overhead.PAPER_SHARE, "mlx-lm, 95K": overhead.MLX_SHARE}
    for index, (name, share) in enumerate(others.items(), 2):
        axes.axhline(100 * share, linestyle=":", color=COLOURS[index], label=name)
    axes.set(xlabel="prompt, tokens", ylabel="hand-over, % of prefill", yscale="log")
    _ticks(axes, [row["prompt"] for row in found])
    _plain(axes.yaxis)
    axes.legend(frameon=False, fontsize=7)


def _naive(report: Report, axes: Axes) -> None:
    """Bars of step times for each number of slots."""
    kinds = list(dict.fromkeys((row["target"], row["update"]) for row in report["decode"]))
    for index, kind in enumerate(kinds):
        rows = [row for row in report["decode"] if (row["target"], row["update"]) == kind]
        values = [1e3 * row["seconds"]["median"] for row in rows]
        places = _places(len(rows), index, len(kinds))
        axes.bar(places, values, 0.8 / len(kinds), label=", ".join(kind), color=COLOURS[index])
    _groups(axes, [f"{slots:,}" for slots in dict.fromkeys(r["slots"] for r in report["decode"])])
    axes.set(xlabel="slots", ylabel="ms per decode step")
    axes.legend(frameon=False, fontsize=7)


def _peers(report: Report, axes: Axes) -> None:
    """A row for each peer, a point for each context."""
    names = list(dict.fromkeys(row["peer"] for row in report["decode"]))[::-1]
    contexts = report["options"]["contexts"]
    for index, context in enumerate(contexts):
        rows = [row for row in report["decode"] if row["context"] == context]
        values = [1e3 * row["seconds"]["median"] for row in rows]
        places = [names.index(row["peer"]) for row in rows]
        axes.plot(values, places, label=f"{context:,} tokens", linestyle="", **_look(index))
    axes.grid(axis="y", linewidth=0.3)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set(xlabel="ms per decode step", xscale="log")
    _plain(axes.xaxis)
    # Beside the points: within them a legend's own marker reads as one more.
    axes.legend(frameon=False, fontsize=7, loc="lower right", bbox_to_anchor=(1, 1), ncols=2)


def _host(report: Report, axes: Axes) -> None:
    """A row for each way of sampling."""
    found = host.summary(report)[::-1]
    axes.barh([row["sampling"] for row in found], [100 * row["share"] for row in found])
    axes.set(xlabel="Python, % of a decode step")


def _look(index: int) -> Row:
    return {"color": COLOURS[index], "marker": MARKERS[index], "markersize": 4}


def _places(count: int, index: int, kinds: int) -> list[float]:
    """Of one kind's bars, side by side with the others'."""
    return [group + 0.8 * (index + 0.5) / kinds - 0.4 for group in range(count)]


def _groups(axes: Axes, names: list[str]) -> None:
    axes.set_xticks(range(len(names)), names)


def _ticks(axes: Axes, values: list[int]) -> None:
    """A tick for each length that was measured, in K where it is one."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(set(values)))
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value / 1024:g}K" if value >= 1024 else f"{value:g}")
    )
    axes.xaxis.set_minor_locator(NullLocator())


def _plain(axis: Axis) -> None:
    """Ticks of a logarithmic axis at 1, 2 and 5, written without powers."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


_DRAWN: dict[str, Callable[[Report, Axes], None]] = {
    "context": _context,
    "equal_memory": _equal_memory,
    "overhead": _overhead,
    "naive": _naive,
    "peers": _peers,
    "peers1b": _peers,
    "scale1b": _context,
    "host": _host,
}
