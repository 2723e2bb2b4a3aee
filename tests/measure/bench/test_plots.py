"""Plots of results, for every shape of report."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib.image
import pytest

from snapexport.measure.bench import plots
from snapexport.measure.plots import STYLE


def row(system: str, context: int, seconds: float, **more: Any) -> dict[str, Any]:
    quartiles = {"q1": 0.9 * seconds, "median": seconds, "q3": 1.2 * seconds}
    least = {"seconds": seconds / 2}
    return {"system": system, "context": context, "seconds": quartiles, "roofline": least} | more


def speed(contexts: tuple[int, ...] = (100, 200), rooflines: bool = True) -> dict[str, Any]:
    names = ("snapstream", "full")
    rows = [row(name, n, 0.01 * n) for n in contexts for name in names]
    steps = [row(name, n, 0.001, batch=b) for n in contexts for name in names for b in (4, 1)]
    sections = {"prefill": rows, "decode": steps}
    if not rooflines:
        sections = {
            key: [one | {"roofline": None} for one in ones] for key, ones in sections.items()
        }
    return {"experiment": "speed", "sections": sections}


def load(side: str, clients: int, seconds: float | None) -> dict[str, Any]:
    tail = None if seconds is None else {"median": seconds, "p99": 2 * seconds}
    rate = {"median": 10.0 * clients}
    return {"side": side, "clients": clients, "tokens_per_second": rate} | {"ttft_seconds": tail}


def loads(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {"experiment": "load", "sections": {"load": rows}}


LOADS = [load(side, clients, 0.1) for clients in (1, 16) for side in ("in_process", "server")]
REPORTS = {
    "speed": (speed(), ["decode_by_context", "prefill_by_context"]),
    "one context, no rooflines": (
        speed((64,), rooflines=False),
        ["decode_by_context", "prefill_by_context"],
    ),
    "prefill alone": (
        {"experiment": "speed", "sections": speed()["sections"] | {"decode": []}},
        ["prefill_by_context"],
    ),
    "load": (loads(LOADS), ["load_by_clients"]),
    "load that failed": (loads([load("server", 4, None)]), ["load_by_clients"]),
    "load without rows": (loads([]), []),
}


@pytest.fixture(autouse=True)
def low_resolution(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer pixels, which draw faster."""
    monkeypatch.setitem(STYLE, "figure.dpi", 40)


@pytest.mark.parametrize("name", REPORTS)
def test_every_bench_report_with_data_has_its_plots(tmp_path: Path, name: str) -> None:
    report, pictures = REPORTS[name]
    former = f"{pictures[0]}.png" if pictures else "load_by_clients.svg"
    (tmp_path / former).write_text("of a former report")
    written = plots.draw(report, tmp_path)
    assert written == [f"{picture}.{kind}" for picture in pictures for kind in ("png", "svg")]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(written)
    for picture in pictures:
        pixels = matplotlib.image.imread(tmp_path / f"{picture}.png")
        assert pixels.min() < 0.5 < pixels.max()
        svg = ElementTree.parse(tmp_path / f"{picture}.svg").getroot()
        assert svg.tag == "{http://www.w3.org/2000/svg}svg"


def test_plot_line_has_its_roofline_beside_it() -> None:
    one, four = plots.decode_by_context(speed()).axes
    assert (one.get_title(), four.get_title()) == ("1 active batch slot", "4 active batch slots")
    lines: dict[Any, Any] = {line.get_label(): line for line in one.get_lines()}
    assert set(lines) == {"snapstream", "snapstream, roofline", "full", "full, roofline"}
    assert list(lines["full"].get_xdata()) == [100, 200]
    assert list(lines["full"].get_ydata()) == [1.0, 1.0]
    assert list(lines["full, roofline"].get_ydata()) == [0.5, 0.5]
    assert lines["full"].get_color() == lines["full, roofline"].get_color()
