"""How all pictures look."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

Row = dict[str, Any]

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


def write(
    pictures: Iterable[tuple[str, Figure]], directory: Path, kinds: Sequence[str] = KINDS
) -> list[str]:
    """Write named pictures, which are drawn meanwhile, and return the names of their files.

    Equal figures give equal files.
    """
    written = []
    with mpl.rc_context(STYLE):
        for name, figure in pictures:
            for kind in kinds:
                path = directory / f"{name}.{kind}"
                metadata = {"Date": None} if kind == "svg" else None
                figure.savefig(path, bbox_inches="tight", metadata=metadata)
                written.append(path.name)
    return written


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
