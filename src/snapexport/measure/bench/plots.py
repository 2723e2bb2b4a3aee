"""Draws a picture of each experiment's results, from its report alone."""

from collections.abc import Callable, Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from snapexport.measure.bench.turns import Row
from snapexport.measure.plots import COLOURS, MARKERS, STYLE

KINDS = ("png", "svg")

Scale = Callable[[Row, float], float]
"""From a row and a time in it, in seconds, to what is drawn."""


def draw(report: Row, directory: Path, kinds: Sequence[str] = KINDS) -> list[str]:
    """Write every picture that the report has data for. Returns the names of the files."""
    pictures = _PICTURES.get(report["experiment"], {})
    for name, kind in product(pictures, kinds):  # a former report's would not fit this one
        (directory / f"{name}.{kind}").unlink(missing_ok=True)
    written = []
    with mpl.rc_context(STYLE):
        for name, (section, drawn) in pictures.items():
            if report["sections"].get(section):
                figure = drawn(report)
                written += [_save(figure, directory / f"{name}.{kind}") for kind in kinds]
    return written


def decode_by_context(report: Row) -> Figure:
    """Milliseconds of a step against the context; a panel a batch."""
    panels = _by(report["sections"]["decode"], "batch")
    figure, drawn = _panels(len(panels))
    for axes, batch in zip(drawn, sorted(panels), strict=True):
        _lines(axes, _by(panels[batch], "system"))
        slots = f"{batch} active batch slot{'s' * (batch > 1)}"
        axes.set(title=slots, xlabel="context, tokens", ylim=(0, None))
    drawn[0].set_ylabel("ms per decode step")
    _legend_beside(drawn[-1])
    return figure


def prefill_by_context(report: Row) -> Figure:
    """Tokens a second against the prompt's length."""
    figure, (axes,) = _panels(1)
    rows = _by(report["sections"]["prefill"], "system")
    _lines(axes, rows, lambda row, seconds: row["context"] / seconds)
    axes.set(xlabel="prompt, tokens", ylabel="prefill, tokens/s", ylim=(0, None))
    _legend_beside(axes)
    return figure


def load_by_clients(report: Row) -> Figure:
    """Tokens a second of all clients, and their TTFT."""
    figure, (rates, firsts) = _panels(2)
    loads = report["sections"]["load"]
    for index, (side, found) in enumerate(_by(loads, "side").items()):
        rows = sorted(found, key=lambda row: int(row["clients"]))
        name, look = side.replace("_", " "), _look(index)
        clients = [row["clients"] for row in rows]
        rates.plot(clients, [r["tokens_per_second"]["median"] for r in rows], label=name, **look)
        told = [row for row in rows if row["ttft_seconds"]]
        for line, key in (("-", "median"), (":", "p99")):
            values, label = [row["ttft_seconds"][key] for row in told], f"{name}, {key}"
            firsts.plot([r["clients"] for r in told], values, label=label, linestyle=line, **look)
    for axes, label in ((rates, "tokens/s, all clients"), (firsts, "TTFT, s")):
        axes.set(xlabel="clients", ylabel=label, ylim=(0, None))
        _ticks(axes, (row["clients"] for row in loads))
        axes.legend(frameon=False, fontsize=7)
    return figure


def cluster_by_clients(report: Row) -> Figure:
    """Tokens a second of each deployment, and its median TTFT."""
    figure, (rates, firsts) = _panels(2)
    found = report["summary"]
    for index, (name, rows) in enumerate(_by(found, "deployment").items()):
        clients = [row["clients"] for row in rows]
        rates.plot(clients, [r["tokens_per_second"] for r in rows], label=name, **_look(index))
        firsts.plot(clients, [r["ttft_median"] for r in rows], label=name, **_look(index))
    for axes, label in ((rates, "tokens/s, all clients"), (firsts, "TTFT, s")):
        axes.set(xlabel="clients", ylabel=label, ylim=(0, None))
        _ticks(axes, (row["clients"] for row in found))
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
    caches = _by(report["sections"]["decode"], "kv_budget")
    named = {
        f"SnapStream, {budget:,} slots" if budget else "full cache": rows
        for budget, rows in caches.items()
    }
    _lines(axes, named)
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
        for cache, found in _by(rows, "cache").items()
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
    from snapexport.measure.bench.experiments.overhead import MLX_SHARE, PAPER_SHARE

    found = report["summary"]
    longest = max((row["L_max"] for row in found), default=0)
    own = [row for row in found if row["L_max"] == row["prompt"]]
    long = [row for row in found if row["L_max"] == longest]
    for index, (name, rows) in enumerate({"its length": own, f"{longest:,}": long}.items()):
        shares = [100 * row["share"] for row in rows]
        label = f"build for prompts up to {name}"
        axes.plot([row["prompt"] for row in rows], shares, label=label, **_look(index))
    others = {"SnapStream's paper, 128K": PAPER_SHARE, "mlx-lm, 95K": MLX_SHARE}
    for index, (name, share) in enumerate(others.items(), 2):
        axes.axhline(100 * share, linestyle=":", color=COLOURS[index], label=name)
    axes.set(xlabel="prompt, tokens", ylabel="compress step, % of prefill", yscale="log")
    _ticks(axes, (row["prompt"] for row in found))
    _plain(axes.yaxis)


def _peers(axes: Axes, report: Row) -> None:
    decode = report["sections"]["decode"]
    names = list(_by(decode, "system"))[::-1]
    for index, (context, rows) in enumerate(_by(decode, "context").items()):
        values = [1e3 * row["seconds"]["median"] for row in rows]
        places = [names.index(row["system"]) for row in rows]
        axes.plot(values, places, label=f"{context:,} tokens", linestyle="", **_look(index))
    axes.grid(axis="y", linewidth=0.3)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set(xlabel="ms per decode step", xscale="log")
    _plain(axes.xaxis)


def _host(axes: Axes, report: Row) -> None:
    found = report["summary"][::-1]
    axes.barh([row["sampling"] for row in found], [100 * row["share"] for row in found])
    axes.set(xlabel="Python, % of a decode step")


def _lines(
    axes: Axes, named: dict[str, list[Row]], scale: Scale = lambda row, seconds: 1e3 * seconds
) -> None:
    """A line over contexts with its quartiles for each name, and its roofline."""
    for index, (name, found) in enumerate(named.items()):
        own = sorted(found, key=lambda row: int(row["context"]))
        look = _look(index)
        contexts, colour = [row["context"] for row in own], look["color"]
        low, middle, high = (
            [scale(row, row["seconds"][key]) for row in own] for key in ("q1", "median", "q3")
        )
        axes.plot(contexts, middle, label=name, **look)
        axes.fill_between(contexts, low, high, color=colour, alpha=0.2, linewidth=0)
        if bounded := [row for row in own if row["roofline"]]:
            least = [scale(row, row["roofline"]["seconds"]) for row in bounded]
            xs, label = [row["context"] for row in bounded], f"{name}, roofline"
            axes.plot(xs, least, "--", color=colour, linewidth=1, label=label)
    _ticks(axes, (row["context"] for rows in named.values() for row in rows))


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


def _by(rows: Iterable[Row], label: str) -> dict[Any, list[Row]]:
    """Rows by a label, in the order of the first of each."""
    found: dict[Any, list[Row]] = {}
    for row in rows:
        found.setdefault(row[label], []).append(row)
    return found


def _panels(count: int) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(3.2 * count + 2, 3.2), layout="constrained")
    return figure, list(figure.subplots(1, count, squeeze=False)[0])


def _look(index: int) -> Row:
    marker = MARKERS[index % len(MARKERS)]
    return {"color": COLOURS[index % len(COLOURS)], "marker": marker, "markersize": 4}


def _ticks(axes: Axes, values: Iterable[int]) -> None:
    """A tick for each value that was measured, in K where it is one."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(set(values)))
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda at, _: f"{at / 1024:g}K" if at and at % 1024 == 0 else f"{at:g}")
    )
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())


def _plain(axis: Axis) -> None:
    """Ticks of a logarithmic axis at 1, 2 and 5, written without powers."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def _legend_beside(axes: Axes) -> None:
    axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False)


def _save(figure: Figure, path: Path) -> str:
    metadata = {"Date": None} if path.suffix == ".svg" else None
    figure.savefig(path, bbox_inches="tight", metadata=metadata)
    return path.name


# Beside the points: within them a legend's own marker reads as one more.
_POINTS = _one(_peers, loc="lower right", bbox_to_anchor=(1, 1), ncols=2)
_PICTURES: dict[str, dict[str, tuple[str, Callable[[Row], Figure]]]] = {
    "speed": {
        "decode_by_context": ("decode", decode_by_context),
        "prefill_by_context": ("prefill", prefill_by_context),
    },
    "load": {"load_by_clients": ("load", load_by_clients)},
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
"""The pictures of each experiment: their names, the section that they need, and who draws them."""
