"""A bench's report as pictures, PNG and SVG each: only what the report says."""

from collections.abc import Callable, Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, NullLocator, ScalarFormatter

from snapexport.plots import COLOURS, MARKERS, STYLE

Report = dict[str, Any]
Row = dict[str, Any]
Scale = Callable[[Row, float], float]
"""From a row and a time in it, in seconds, to what is drawn."""

KINDS = ("png", "svg")


def draw(report: Report, directory: Path) -> list[str]:
    """Write every picture that the report has data for; the names of the files."""
    for name, kind in product(_DRAWN, KINDS):  # a former report's would not fit this one
        (directory / f"{name}.{kind}").unlink(missing_ok=True)
    with mpl.rc_context(STYLE):
        return [
            _save(picture, directory / f"{name}.{kind}")
            for name, picture in _pictures(report)
            for kind in KINDS
        ]


def _pictures(report: Report) -> Iterator[tuple[str, Figure]]:
    for name, (rows, drawn) in _DRAWN.items():
        if report.get(rows):
            yield name, drawn(report)


def decode_by_context(report: Report) -> Figure:
    """Milliseconds of a step against the context, with quartiles and floors; a panel a batch."""
    batches = sorted({row["batch"] for row in report["decode"]})
    figure, panels = _panels(len(batches))
    for axes, batch in zip(panels, batches, strict=True):
        rows = [row for row in report["decode"] if row["batch"] == batch]
        _draw_lines(axes, rows, lambda row, value: 1e3 * value)
        axes.set(title=f"{batch} active slot{'s' * (batch > 1)}", xlabel="context, tokens")
        axes.set_ylim(bottom=0)
    panels[0].set_ylabel("ms per decode step")
    _legend(panels[-1])
    return figure


def prefill_by_context(report: Report) -> Figure:
    """Tokens a second against the prompt's length, with quartiles and floors."""
    figure, (axes,) = _panels(1)
    _draw_lines(axes, report["prefill"], lambda row, value: row["context"] / value)
    axes.set(xlabel="prompt, tokens", ylabel="prefill, tokens/s")
    axes.set_ylim(bottom=0)
    _legend(axes)
    return figure


def load_by_clients(report: Report) -> Figure:
    """Tokens a second of all clients, and their times to the first token."""
    figure, (rates, firsts) = _panels(2)
    for index, side in enumerate(dict.fromkeys(row["side"] for row in report["load"])):
        rows = sorted((r for r in report["load"] if r["side"] == side), key=lambda r: r["clients"])
        look: Any = {"color": COLOURS[index], "marker": MARKERS[index], "markersize": 4}
        name = side.replace("_", " ")
        clients = [row["clients"] for row in rows]
        rates.plot(clients, [r["tokens_per_second"]["median"] for r in rows], label=name, **look)
        told = [row for row in rows if row["first_token_seconds"]]
        for line, key in (("-", "median"), (":", "p99")):
            values = [row["first_token_seconds"][key] for row in told]
            label = f"{name}, {key}"
            firsts.plot([r["clients"] for r in told], values, label=label, linestyle=line, **look)
    rates.set(ylabel="tokens/s, all clients", ylim=(0, None))
    firsts.set(ylabel="s to the first token", ylim=(0, None))
    for axes in (rates, firsts):
        axes.set_xlabel("clients")
        _log_ticks(axes, {row["clients"] for row in report["load"]})
        axes.legend(frameon=False, fontsize=7)
    return figure


def _panels(count: int) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(3.2 * count + 2, 3.2), layout="constrained")
    return figure, list(figure.subplots(1, count, squeeze=False)[0])


def _draw_lines(axes: Axes, rows: list[Row], scaled: Scale) -> None:
    """A line with its quartiles for each contender, and its floor."""
    for index, name in enumerate(dict.fromkeys(row["contender"] for row in rows)):
        own = sorted((r for r in rows if r["contender"] == name), key=lambda row: row["context"])
        contexts, colour = [row["context"] for row in own], COLOURS[index % len(COLOURS)]
        low, middle, high = (
            [scaled(row, row["seconds"][key]) for row in own] for key in ("q1", "median", "q3")
        )
        marker = MARKERS[index % len(MARKERS)]
        axes.plot(contexts, middle, color=colour, marker=marker, markersize=4, label=name)
        axes.fill_between(contexts, low, high, color=colour, alpha=0.2, linewidth=0)
        bounded = [row for row in own if row["floor"]]
        if bounded:
            floor = [scaled(row, row["floor"]["seconds"]) for row in bounded]
            xs = [row["context"] for row in bounded]
            axes.plot(xs, floor, color=colour, linestyle="--", linewidth=1, label=f"{name}, floor")
    _log_ticks(axes, {row["context"] for row in rows})


def _log_ticks(axes: Axes, values: Iterable[int]) -> None:
    """A tick for each value that was measured, and no other."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(values))
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())


def _legend(axes: Axes) -> None:
    axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False)


def _save(figure: Figure, path: Path) -> str:
    metadata = {"Date": None} if path.suffix == ".svg" else None
    figure.savefig(path, bbox_inches="tight", metadata=metadata)
    return path.name


_DRAWN: dict[str, tuple[str, Callable[[Report], Figure]]] = {
    "decode_by_context": ("decode", decode_by_context),
    "prefill_by_context": ("prefill", prefill_by_context),
    "load_by_clients": ("load", load_by_clients),
}
"""Each picture, and the part of the report that it needs."""
