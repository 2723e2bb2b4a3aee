"""Draws the pictures of reports: of `snapexport bench`, of `snapexport eval`, and of the studies.

Knows only reports: it measures nothing.
"""

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter, NullLocator

from snapexport.measure.options import MODES

Row = dict[str, Any]
Scale = Callable[[Row, float], float]
"""From a row and a time in it, in seconds, to what is drawn."""
Pictures = Mapping[str, Mapping[str, tuple[str, Callable[[Row], Figure]]]]
"""The section that a picture needs, and what draws it, by experiment and name."""

STYLE: Any = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "snapexport",
    "figure.dpi": 150,
}
# Okabe and Ito's colours, which people who see fewer of them can distinguish; so do markers. One
# marker more than colours: no two of the first 56 lines look alike.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
KINDS = ("png", "svg")

NAME_WIDTH = 24
"""Characters after which a name is broken, if it can be."""
COLUMNS = 5
"""Maps side by side, where there is one budget."""


def draw(
    report: Row, directory: Path, kinds: Sequence[str] = KINDS, known: Pictures | None = None
) -> list[str]:
    """Write every picture that the report has data for. Returns the names of the files.

    Pictures that it has no data for are removed: those of a former report would not fit this one.
    """
    is_bench = "sections" in report
    sections = report["sections"] if is_bench else _sections_of_evaluation(report)
    pictures = (known or PICTURES).get(report["experiment"] if is_bench else "eval", {})
    drawn = (
        (name, figure_of(report | sections) if sections.get(section) else None)
        for name, (section, figure_of) in pictures.items()
    )
    return write(drawn, directory, kinds)


def write(
    pictures: Iterable[tuple[str, Figure | None]], directory: Path, kinds: Sequence[str] = KINDS
) -> list[str]:
    """Write named pictures, which are drawn meanwhile, and return the names of their files.

    Equal figures give equal files. The files of a name without a figure are removed.
    """
    written = []
    with mpl.rc_context(STYLE):
        for name, figure in pictures:
            for path in (directory / f"{name}.{kind}" for kind in kinds):
                if figure is None:
                    path.unlink(missing_ok=True)
                    continue
                metadata = {"Date": None} if path.suffix == ".svg" else None
                figure.savefig(path, bbox_inches="tight", metadata=metadata)
                written.append(path.name)
    return written


def _sections_of_evaluation(report: Row) -> Row:
    """Results of the tasks that count, also by mode; continuations; hit rates of votes."""
    results = [row for row in report["results"] if row["counts"]]
    rates = [rate for rate in report["hit_rate"] if _was_seen(rate)]
    found = {"results": results, "continuations": report["continuations"], "hit_rate": rates}
    return found | by(results, "mode")


def panels(
    count: int, width: float = 3.2, beside: float = 2, *, sharey: bool = False
) -> tuple[Figure, list[Axes]]:
    """A figure, and its panels side by side. width: inches of a panel. beside: for the rest."""
    figure = Figure(figsize=(width * count + beside, 3.2), layout="constrained")
    return figure, list(figure.subplots(1, count, squeeze=False, sharey=sharey)[0])


def by(rows: Iterable[Row], label: str) -> dict[Any, list[Row]]:
    """Rows by a label, in the order of the first of each."""
    found: dict[Any, list[Row]] = {}
    for row in rows:
        found.setdefault(row[label], []).append(row)
    return found


def look(index: int) -> Row:
    """Colour and marker of a series."""
    marker = MARKERS[index % len(MARKERS)]
    return {"color": COLOURS[index % len(COLOURS)], "marker": marker, "markersize": 4}


def legend_beside(axes: Axes, **style: Any) -> None:
    """A legend to the right of the last panel."""
    axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False, **style)


def ticks(axes: Axes, values: Iterable[int], rotation: int = 0) -> None:
    """A logarithmic axis with a tick for each value that was measured, in K where it is one."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(set(values)))
    axes.tick_params(axis="x", rotation=rotation)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda at, _: thousands(at)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())


def thousands(tokens: float) -> str:
    """Such as 4K for 4096; the number itself where it isn't a multiple of 1024."""
    return f"{tokens / 1024:g}K" if tokens and tokens % 1024 == 0 else f"{tokens:g}"


def break_name(name: str) -> str:
    """A name in lines of NAME_WIDTH, broken only after its colon and commas."""
    lines = [""]
    for part in re.findall(r"[^:,]+[:,]?", name):
        if lines[-1] and len(lines[-1] + part) > NAME_WIDTH:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def lines(
    axes: Axes, named: dict[str, list[Row]], scale: Scale = lambda row, seconds: 1e3 * seconds
) -> None:
    """A line over contexts with its quartiles for each name, and its roofline."""
    for index, (name, found) in enumerate(named.items()):
        own = sorted(found, key=lambda row: int(row["context"]))
        style = look(index)
        contexts, colour = [row["context"] for row in own], style["color"]
        low, middle, high = (
            [scale(row, row["seconds"][key]) for row in own] for key in ("q1", "median", "q3")
        )
        axes.plot(contexts, middle, label=name, **style)
        axes.fill_between(contexts, low, high, color=colour, alpha=0.2, linewidth=0)
        if bounded := [row for row in own if row["roofline"]]:
            least = [scale(row, row["roofline"]["seconds"]) for row in bounded]
            xs, label = [row["context"] for row in bounded], f"{name}, roofline"
            axes.plot(xs, least, "--", color=colour, linewidth=1, label=label)
    ticks(axes, (row["context"] for rows in named.values() for row in rows))


def decode_by_context(report: Row) -> Figure:
    """Milliseconds of a step against the context; a panel a batch."""
    batches = by(report["sections"]["decode"], "batch")
    figure, drawn = panels(len(batches))
    for axes, batch in zip(drawn, sorted(batches), strict=True):
        lines(axes, by(batches[batch], "system"))
        slots = f"{batch} active batch slot{'s' * (batch > 1)}"
        axes.set(title=slots, xlabel="context, tokens", ylim=(0, None))
    drawn[0].set_ylabel("ms per decode step")
    legend_beside(drawn[-1])
    return figure


def prefill_by_context(report: Row) -> Figure:
    """Tokens a second against the prompt's length."""
    figure, (axes,) = panels(1)
    rows = by(report["sections"]["prefill"], "system")
    lines(axes, rows, lambda row, seconds: row["context"] / seconds)
    axes.set(xlabel="prompt, tokens", ylabel="prefill, tokens/s", ylim=(0, None))
    legend_beside(axes)
    return figure


def _names(report: Row) -> list[str]:
    """The systems, each once, in the order of the report."""
    return list(by(report["systems"], "system"))


def _compressing(report: Row) -> list[str]:
    """The systems that keep less than all; their order gives each the same colour everywhere."""
    return list(by((row for row in report["systems"] if row["policy"] != "full"), "system"))


def _budgets(report: Row) -> list[int]:
    """Cache slots of the compressing systems, ascending."""
    return sorted({row["slots"] for row in report["systems"] if row["policy"] != "full"})


def _reference(axes: Axes, value: float, **label: Any) -> None:
    """A dashed line of the full cache."""
    axes.axhline(value, color="0.4", linestyle="--", linewidth=1, **label)


def _panels_of_slots(
    report: Row, titles: Collection[object], label: str, width: float = 3.2
) -> tuple[Figure, list[Axes]]:
    """A panel for each title, with room for a legend of the systems' names."""
    names = [line for name in _names(report) for line in break_name(name).split("\n")]
    figure, drawn = panels(len(titles), width, 1 + 0.09 * max(map(len, names)), sharey=True)
    for axes in drawn:
        axes.set(xlabel="cache slots per KV head")
    drawn[0].set_ylabel(label)
    return figure, drawn


def accuracy_by_budget(report: Row) -> Figure:
    """Mean accuracy over tasks and lengths against the slots of the cache, a panel a mode."""
    modes, compressing = by(report["results"], "mode"), _compressing(report)
    budgets = _budgets(report)
    figure, drawn = _panels_of_slots(report, modes, "accuracy")
    for axes, (mode, rows) in zip(drawn, modes.items(), strict=True):
        for name, own in by(rows, "system").items():
            if name in compressing:
                scores = [_mean(r["score"] for r in own if r["slots"] == n) for n in budgets]
                style = look(compressing.index(name))
                axes.plot(budgets, scores, label=break_name(name), **style)
            else:
                _reference(axes, _mean(row["score"] for row in own), label=break_name(name))
        if budgets:
            ticks(axes, budgets)
        axes.set(title=MODES[mode], ylim=(-0.03, 1.03))
    legend_beside(drawn[-1])
    return figure


def _mean(scores: Iterable[float]) -> float:
    found = list(scores)
    return float(np.mean(found)) if found else math.nan


def loss_by_slots(report: Row) -> Figure:
    """Log likelihood lost on documents against the slots of the cache, a panel a length."""
    lengths = by(sorted(report["continuations"], key=lambda row: int(row["length"])), "length")
    figure, drawn = _panels_of_slots(report, lengths, "nats a token lost", width=2.6)
    for axes, (length, rows) in zip(drawn, lengths.items(), strict=True):
        own, columns = by(rows, "system"), ("slots", "loss", "loss_stderr")
        for index, name in enumerate(_compressing(report)):
            slots, loss, error = ([row[key] or 0 for row in own.get(name, [])] for key in columns)
            axes.errorbar(slots, loss, error, label=break_name(name), **look(index))
        ticks(axes, [budget for budget in _budgets(report) if budget < length], rotation=90)
        _reference(axes, 0)
        axes.set(title=f"{length} tokens")
    legend_beside(drawn[-1])
    return figure


def depths(report: Row, mode: str) -> Figure:
    """Accuracy by the needle's depth and the prompt's length, mean over tasks, a map a cache."""
    rows = [row for row in report["results"] if row["mode"] == mode]
    places = _places(report)
    count, columns = (max(place) + 1 for place in zip(*places.values(), strict=True))
    title_lines = 2 + max(break_name(name).count("\n") for name in _names(report))
    size = 1.9 * columns + 1.4, (1.6 + 0.15 * title_lines) * count + 0.6
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(count, columns, sharex=True, sharey=True, squeeze=False)
    for axes in grid.flat:
        axes.axis("off")
    for (name, slots), (line, column) in places.items():
        own = [row for row in rows if (row["system"], row["slots"]) == (name, slots)]
        axes = grid[line, column]
        axes.axis("on")
        image = _draw_depths(axes, own, report["options"])
        axes.set_title(f"{break_name(name)}\n{slots} slots", fontsize=8)
        axes.tick_params(labelbottom=(line + 1, column) not in places.values())
    _name_maps(figure, grid, image, "accuracy", "prompt, tokens", "depth of the needle")
    figure.suptitle(MODES[mode], fontsize=10)
    return figure


def _places(report: Row) -> dict[tuple[str, int], tuple[int, int]]:
    """Line and column of each cache: a line a policy, or with one budget all in a row."""
    caches = [(row["system"], row["slots"]) for row in report["systems"]]
    names, budgets = _names(report), _budgets(report)
    if len(budgets) < 2:
        return {cache: divmod(index, COLUMNS) for index, cache in enumerate(caches)}
    compressing = _compressing(report)
    return {
        (name, slots): (names.index(name), budgets.index(slots) if name in compressing else 0)
        for name, slots in caches
    }


def _draw_depths(axes: Axes, rows: list[Row], options: Row) -> Any:
    """Depths down, lengths across, each cell with its number."""
    by_length, lengths = by(rows, "length"), options["lengths"]
    places = sorted(set(options["depths"]))

    def score(depth: float, length: int) -> float:
        return _mean(row["by_depth"][str(depth)] for row in by_length.get(length, []))

    cells = np.array([[score(depth, length) for length in lengths] for depth in places])
    image = _draw_map(axes, cells)
    axes.set_xticks(range(len(lengths)), list(map(thousands, lengths)))
    axes.set_yticks(range(len(places)), [f"{place:g}" for place in places])
    axes.spines[:].set_visible(False)
    for (y, x), value in np.ndenumerate(cells):
        colour = "black" if value > 0.6 else "white"
        axes.text(x, y, f"{value:.2f}", ha="center", va="center", color=colour, fontsize=7)
    return image


def _draw_map(axes: Axes, cells: Any, **where: Any) -> Any:
    """Shares from 0 to 1 as colours; white where one is missing."""
    return axes.imshow(cells, vmin=0, vmax=1, cmap="viridis", aspect="auto", **where)


def _name_maps(figure: Any, grid: Any, image: Any, value: str, across: str, down: str) -> None:
    """A colour bar for all maps of a figure, and names of their axes."""
    figure.colorbar(image, ax=grid, label=value, shrink=0.8)
    figure.supxlabel(across, fontsize=9)
    figure.supylabel(down, fontsize=9)


def hit_rate(report: Row) -> Figure:
    """SnapKV's Figure 2: the share of the positions looked at that the vote kept.

    Above by layer; below by layer and decoded token, a row a policy, a column a budget.
    """
    rates = [rate for rate in report["hit_rate"] if _was_seen(rate)]
    names, budgets = list(by(rates, "system")), _budgets(report)
    maps = len(names) * (1.1 + 0.15 * max(break_name(name).count("\n") + 1 for name in names))
    figure = Figure(figsize=(2.4 * len(budgets) + 4, 2.4 + maps), layout="constrained")
    parts: Any = figure.subfigures(2, 1, height_ratios=[2.4, maps])
    above, below = parts
    _draw_layers(above.subplots(), rates, _compressing(report), budgets)
    grid = below.subplots(len(names), len(budgets), sharex=True, sharey=True, squeeze=False)
    for rate in rates:
        image = _draw_steps(grid[names.index(rate["system"]), budgets.index(rate["slots"])], rate)
    _name_maps(below, grid, image, "hit rate", "decoded token", "layer")
    return figure


def _draw_layers(axes: Axes, rates: list[Row], names: list[str], budgets: list[int]) -> None:
    """A colour for each policy and a marker for each budget, which keeps the legend short."""
    colours, markers = dict(zip(names, cycle(COLOURS))), dict(zip(budgets, cycle(MARKERS)))
    for rate in rates:
        layers, colour = np.array(rate["by_layer"], float), colours[rate["system"]]
        axes.plot(layers, color=colour, marker=markers[rate["slots"]], markersize=4)
    seen, slots = by(rates, "system"), by(rates, "slots")
    for name in (name for name in names if name in seen):
        axes.plot([], color=colours[name], label=break_name(name))
    for count in (budget for budget in budgets if budget in slots):
        axes.plot([], color="black", marker=markers[count], ls="", ms=4, label=f"{count} slots")
    axes.set(xlabel="layer", ylabel="hit rate", ylim=(-0.03, 1.03))
    axes.set_title(f"kept by the vote, of what has attention above {rates[0]['theta']}")
    axes.set_xlim(-0.5, len(rates[0]["by_layer"]) - 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend_beside(axes, fontsize=7)


def _draw_steps(axes: Axes, rate: Row) -> Any:
    """Layers down, decoded tokens across; white where nothing was looked at."""
    table = np.array(rate["by_layer_and_step"], float)
    watched = np.flatnonzero(~np.isnan(table).all(0))
    table = table[:, : watched[-1] + 1]
    image = _draw_map(axes, table, extent=(0.5, table.shape[1] + 0.5, len(table) - 0.5, -0.5))
    axes.set_title(f"{break_name(rate['system'])}, {rate['slots']} slots", fontsize=8)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    return image


def _was_seen(rate: Row) -> bool:
    """Whether anything was looked at at all."""
    return any(value is not None for value in rate["by_layer"])


PICTURES: Pictures = {
    "speed": {
        "decode_by_context": ("decode", decode_by_context),
        "prefill_by_context": ("prefill", prefill_by_context),
    },
    "eval": {
        "accuracy_by_budget": ("results", accuracy_by_budget),
        **{f"depth_by_length_{mode}": (mode, partial(depths, mode=mode)) for mode in MODES},
        "loss_by_slots": ("continuations", loss_by_slots),
        "hit_rate": ("hit_rate", hit_rate),
    },
}
