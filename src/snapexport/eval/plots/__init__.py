"""An evaluation's report as pictures, PNG and SVG each: only what the report says."""

from collections.abc import Iterator
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from snapexport.eval.plots.by_budget import accuracy_by_budget
from snapexport.eval.plots.by_depth import depths
from snapexport.eval.plots.by_layer import has_rates, hit_rate
from snapexport.eval.plots.look import Report
from snapexport.plots import STYLE

__all__ = ["accuracy_by_budget", "depths", "draw", "hit_rate"]


def draw(report: Report, directory: Path) -> list[str]:
    """Write every picture that the report has data for; the names of the files."""
    with mpl.rc_context(STYLE):
        return [
            _save(picture, directory / f"{name}.{kind}")
            for name, picture in _pictures(report)
            for kind in ("png", "svg")
        ]


def _pictures(report: Report) -> Iterator[tuple[str, Figure]]:
    yield "accuracy_by_budget", accuracy_by_budget(report)
    for mode in report["options"]["modes"]:
        yield f"depth_by_length_{mode}", depths(report, mode)
    if has_rates(report):
        yield "hit_rate", hit_rate(report)


def _save(figure: Figure, path: Path) -> str:
    metadata = {"Date": None} if path.suffix == ".svg" else None
    figure.savefig(path, bbox_inches="tight", metadata=metadata)
    return path.name
