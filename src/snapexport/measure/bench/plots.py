"""Draws pictures of results from a report, without what was measured."""

from collections.abc import Callable, Iterable, Sequence
from itertools import product
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

from snapexport.measure.bench.turns import Row
from snapexport.measure.plots import KINDS, by, legend_beside, look, panels, write

Scale = Callable[[Row, float], float]
"""From a row and a time in it, in seconds, to what is drawn."""


Pictures = dict[str, dict[str, tuple[str, Callable[[Row], Figure]]]]
"""By experiment and name: the section that a picture needs, and what draws it."""


def draw(
    report: Row, directory: Path, kinds: Sequence[str] = KINDS, known: Pictures | None = None
) -> list[str]:
    """Write every picture that the report has data for. Returns the names of the files."""
    pictures = (known or PICTURES).get(report["experiment"], {})
    for name, kind in product(pictures, kinds):  # a former report's would not fit this one
        (directory / f"{name}.{kind}").unlink(missing_ok=True)
    drawn = (
        (name, figure_of(report))
        for name, (section, figure_of) in pictures.items()
        if report["sections"].get(section)
    )
    return write(drawn, directory, kinds)


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


def load_by_clients(report: Row) -> Figure:
    """Tokens a second of all clients, and their TTFT."""
    figure, (rates, firsts) = panels(2)
    loads = report["sections"]["load"]
    for index, (side, found) in enumerate(by(loads, "side").items()):
        rows = sorted(found, key=lambda row: int(row["clients"]))
        name, style = side.replace("_", " "), look(index)
        clients = [row["clients"] for row in rows]
        rates.plot(clients, [r["tokens_per_second"]["median"] for r in rows], label=name, **style)
        answered = [row for row in rows if row["ttft_seconds"]]
        for line, key in (("-", "median"), (":", "p99")):
            seconds = [row["ttft_seconds"][key] for row in answered]
            served = [row["clients"] for row in answered]
            firsts.plot(served, seconds, label=f"{name}, {key}", linestyle=line, **style)
    for axes, label in ((rates, "tokens/s, all clients"), (firsts, "TTFT, s")):
        axes.set(xlabel="clients", ylabel=label, ylim=(0, None))
        ticks(axes, (row["clients"] for row in loads))
        axes.legend(frameon=False, fontsize=7)
    return figure


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


def ticks(axes: Axes, values: Iterable[int]) -> None:
    """A tick for each value that was measured, in K where it is one."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(set(values)))
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda at, _: f"{at / 1024:g}K" if at and at % 1024 == 0 else f"{at:g}")
    )
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())


PICTURES: Pictures = {
    "speed": {
        "decode_by_context": ("decode", decode_by_context),
        "prefill_by_context": ("prefill", prefill_by_context),
    },
    "load": {"load_by_clients": ("load", load_by_clients)},
}
