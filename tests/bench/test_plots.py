"""The pictures: there for every shape of report, and of that report alone."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib.image
import pytest

from snapexport.bench import plots


def row(contender: str, context: int, seconds: float, **more: Any) -> dict[str, Any]:
    quartiles = {"q1": 0.9 * seconds, "median": seconds, "q3": 1.2 * seconds}
    floor = {"seconds": seconds / 2}
    return {"contender": contender, "context": context, "seconds": quartiles, "floor": floor} | more


def speed(contexts: tuple[int, ...] = (100, 200), floors: bool = True) -> dict[str, Any]:
    names = ("snapstream", "full")
    rows = [row(name, n, 0.01 * n) for n in contexts for name in names]
    steps = [row(name, n, 0.001, batch=b) for n in contexts for name in names for b in (4, 1)]
    report = {"prefill": rows, "decode": steps}
    if not floors:
        report = {key: [one | {"floor": None} for one in ones] for key, ones in report.items()}
    return report


def load(side: str, clients: int, seconds: float | None) -> dict[str, Any]:
    tail = None if seconds is None else {"median": seconds, "p99": 2 * seconds}
    rate = {"median": 10.0 * clients}
    return {"side": side, "clients": clients, "tokens_per_second": rate} | {
        "first_token_seconds": tail
    }


LOADS = [load(side, clients, 0.1) for clients in (1, 16) for side in ("in_process", "server")]
REPORTS = {
    "speed": (speed(), ["decode_by_context", "prefill_by_context"]),
    "one context, no floors": (
        speed((64,), floors=False),
        ["decode_by_context", "prefill_by_context"],
    ),
    "prefill alone": (speed() | {"decode": []}, ["prefill_by_context"]),
    "load": ({"load": LOADS}, ["load_by_clients"]),
    "load that failed": ({"load": [load("server", 4, None)]}, ["load_by_clients"]),
    "nothing": ({"load": []}, []),
}


@pytest.fixture(autouse=True)
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer pixels to paint."""
    monkeypatch.setitem(plots.STYLE, "figure.dpi", 40)


@pytest.mark.parametrize("name", REPORTS)
def test_every_report_has_its_pictures(tmp_path: Path, name: str) -> None:
    report, pictures = REPORTS[name]
    (tmp_path / "load_by_clients.png").write_text("of a former report")
    written = plots.draw(report, tmp_path)
    assert written == [f"{picture}.{kind}" for picture in pictures for kind in ("png", "svg")]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(written)
    for picture in pictures:
        pixels = matplotlib.image.imread(tmp_path / f"{picture}.png")
        assert pixels.min() < 0.5 < pixels.max()
        svg = ElementTree.parse(tmp_path / f"{picture}.svg").getroot()
        assert svg.tag == "{http://www.w3.org/2000/svg}svg"


def test_a_line_is_what_was_measured_and_its_floor_is_beside_it() -> None:
    one, four = plots.decode_by_context(speed()).axes
    assert (one.get_title(), four.get_title()) == ("1 active slot", "4 active slots")
    lines: dict[Any, Any] = {line.get_label(): line for line in one.get_lines()}
    assert set(lines) == {"snapstream", "snapstream, floor", "full", "full, floor"}
    assert list(lines["full"].get_xdata()) == [100, 200]
    assert list(lines["full"].get_ydata()) == [1.0, 1.0]
    assert list(lines["full, floor"].get_ydata()) == [0.5, 0.5]
    assert lines["full"].get_color() == lines["full, floor"].get_color()


def test_prefill_is_drawn_in_tokens_a_second() -> None:
    (axes,) = plots.prefill_by_context(speed()).axes
    lines: dict[Any, Any] = {line.get_label(): line for line in axes.get_lines()}
    assert list(lines["full"].get_ydata()) == [100.0, 100.0]
    assert list(lines["full, floor"].get_ydata()) == [200.0, 200.0]
