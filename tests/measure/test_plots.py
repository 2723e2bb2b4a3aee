"""The pictures of bench and eval: there for every shape of report, and readable."""

from collections.abc import Sequence
from itertools import pairwise, product
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib.image
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from snapexport.measure import plots
from snapexport.measure.plots import STYLE

PNG, SVG = b"\x89PNG\r\n\x1a\n", "{http://www.w3.org/2000/svg}svg"
LONG = "snapstream:vote=sum-squares,pool=max"
LONGER = "snapstream:L_obs=16,vote=sum-squares,pool=max,group=max"


def a_report(
    names: Sequence[str] = ("full", "snapstream", "streaming"),
    budgets: Sequence[int] = (64,),
    modes: Sequence[str] = ("aware",),
    lengths: Sequence[int] = (256, 512),
    depths: Sequence[float] = (0.0, 0.5),
    layers: int = 2,
) -> dict[str, Any]:
    """Scores that differ from cell to cell; hit rates of all that vote."""
    caches = [(n, s) for n in names for s in ((999,) if n == "full" else budgets)]
    scores = (round(0.37 * i % 1, 4) for i in range(10_000))
    results = [
        {"system": name, "slots": slots, "mode": mode, "task": "vault", "length": length}
        | {"counts": True, "score": next(scores)}
        | {"by_depth": {str(depth): next(scores) for depth in depths}}
        for mode, length, (name, slots) in product(modes, lengths, caches)
    ]
    rates = [
        {"system": name, "slots": slots, "theta": 0.05, "prompts": 1}
        | {"by_layer": [None, *(next(scores) for _ in range(layers - 1))]}
        | {"by_layer_and_step": [[None] * 9, *([next(scores)] * 5 + [None] * 4,) * (layers - 1)]}
        for name, slots in caches
        if name not in ("full", "streaming")
    ]
    return {
        "options": {"modes": modes, "lengths": lengths, "depths": depths},
        "systems": [
            {"system": name, "slots": slots, "policy": name.partition(":")[0]}
            for name, slots in caches
        ],
        "results": results,
        "continuations": [],
        "hit_rate": rates,
    }


NINE = ("full", "snapstream", "streaming", *(f"snapstream:L_obs={n}" for n in range(1, 8)))
REPORTS = {
    "one of everything": a_report(["snapstream"], lengths=[256], depths=[0.5]),
    "the full cache alone": a_report(["full"]),
    "three modes, two budgets": a_report(
        budgets=(16, 100), modes=("aware", "agnostic", "late"), depths=[1.0]
    )
    | {"hit_rate": []},
    "nine policies": a_report(NINE) | {"hit_rate": []},
    "many layers": a_report(layers=32),
    "no hit rate": a_report() | {"hit_rate": []},
    "nothing looked at": a_report()
    | {"hit_rate": [a_report()["hit_rate"][0] | {"by_layer": [None, None]}]},
}


@pytest.fixture(autouse=True)
def low_resolution(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer pixels to paint."""
    monkeypatch.setitem(STYLE, "figure.dpi", 40)


def require_pictures(report: dict[str, Any], pictures: Sequence[str], folder: Path) -> None:
    """Draw a report, and check that just these pictures are there, with something on them."""
    written = plots.draw(report, folder)
    assert written == [f"{picture}.{kind}" for picture in pictures for kind in ("png", "svg")]
    assert sorted(path.name for path in folder.iterdir()) == sorted(written)
    for picture in pictures:
        assert (folder / f"{picture}.png").read_bytes().startswith(PNG)
        pixels = matplotlib.image.imread(folder / f"{picture}.png")
        assert pixels.min() < 0.5 < pixels.max()
        assert ElementTree.parse(folder / f"{picture}.svg").getroot().tag == SVG


LARGE = ("three modes, two budgets", "nine policies", "many layers")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in LARGE else ()) for n in REPORTS]
)
def test_every_evaluation_has_its_plots(tmp_path: Path, name: str) -> None:
    report = REPORTS[name]
    pictures = ["accuracy_by_budget", *(f"depth_by_length_{m}" for m in report["options"]["modes"])]
    if any(value is not None for rate in report["hit_rate"] for value in rate["by_layer"]):
        pictures.append("hit_rate")
    require_pictures(report, pictures, tmp_path)


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


BENCHES = {
    "speed": (speed(), ["decode_by_context", "prefill_by_context"]),
    "one context, no rooflines": (
        speed((64,), rooflines=False),
        ["decode_by_context", "prefill_by_context"],
    ),
    "only prefill": (
        {"experiment": "speed", "sections": speed()["sections"] | {"decode": []}},
        ["prefill_by_context"],
    ),
    "no rows": ({"experiment": "speed", "sections": {}}, []),
    "unknown": ({"experiment": "other", "sections": speed()["sections"]}, []),
}


@pytest.mark.parametrize("name", BENCHES)
def test_every_bench_report_with_data_has_its_plots(tmp_path: Path, name: str) -> None:
    report, pictures = BENCHES[name]
    require_pictures(report, pictures, tmp_path)


def test_pictures_of_a_former_report_are_removed(tmp_path: Path) -> None:
    report, _ = BENCHES["only prefill"]
    for former in ("decode_by_context.png", "decode_by_context.svg", "mine.png"):
        (tmp_path / former).write_text("of a former report")
    plots.draw(report, tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"mine.png", "prefill_by_context.png", "prefill_by_context.svg"}


def test_plot_line_has_its_roofline_beside_it() -> None:
    one, four = plots.decode_by_context(speed()).axes
    assert (one.get_title(), four.get_title()) == ("1 active batch slot", "4 active batch slots")
    lines: dict[Any, Any] = {line.get_label(): line for line in one.get_lines()}
    assert set(lines) == {"snapstream", "snapstream, roofline", "full", "full, roofline"}
    assert list(lines["full"].get_xdata()) == [100, 200]
    assert list(lines["full"].get_ydata()) == [1.0, 1.0]
    assert list(lines["full, roofline"].get_ydata()) == [0.5, 0.5]
    assert lines["full"].get_color() == lines["full, roofline"].get_color()


def test_plots_are_deterministic(tmp_path: Path) -> None:
    for run in ("a", "b"):
        (tmp_path / run).mkdir()
        plots.draw(a_report(["full"]), tmp_path / run)
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()


def titles(figure: Figure) -> list[Any]:
    """Positions of the panels' titles, from left to right and from above."""
    FigureCanvasAgg(figure).draw()
    panels = [axes for axes in figure.axes if axes.get_title()]
    return [axes.title.get_window_extent() for axes in panels]


@pytest.mark.parametrize("budgets", [(64,), (64, 128)])
def test_plot_titles_of_long_names_do_not_overlap(budgets: tuple[int, ...]) -> None:
    report = a_report(("full", LONG, LONGER, "streaming"), budgets)
    for figure in (plots.depths(report, "aware"), plots.hit_rate(report)):
        boxes = titles(figure)
        assert len(boxes) >= 1 + 2 * len(budgets)
        assert not any(a.overlaps(b) for a, b in pairwise(boxes))
        assert all(box.x0 >= 0 and box.x1 <= figure.bbox.x1 for box in boxes)


def test_a_plot_label_breaks_only_between_fields() -> None:
    assert plots.break_name("snapstream") == "snapstream"
    assert plots.break_name("snapstream:L_obs=16") == "snapstream:L_obs=16"
    assert plots.break_name(LONG) == "snapstream:\nvote=sum-squares,\npool=max"
    assert plots.break_name(LONGER).replace("\n", "") == LONGER


def test_plot_lines_are_distinct_and_a_policy_keeps_its_colour() -> None:
    report = a_report(NINE, budgets=(32, 64))
    lines = plots.accuracy_by_budget(report).axes[0].get_lines()
    looks = [(line.get_color(), line.get_marker()) for line in lines]
    assert len(set(looks)) == len(NINE)
    above = plots.hit_rate(report).axes[0]
    colours = {line.get_label(): line.get_color() for line in lines}
    named = {one.get_label(): one for one in above.get_legend().legend_handles}
    drawn = [line for line in above.get_lines() if len(line.get_xdata())]
    for rate, line in zip(report["hit_rate"], drawn, strict=True):
        name = plots.break_name(rate["system"])
        assert line.get_color() == named[name].get_color() == colours[name]
        assert line.get_marker() == named[f"{rate['slots']} slots"].get_marker()


def test_the_legend_of_many_hit_rates_covers_no_panel() -> None:
    figure = plots.hit_rate(a_report(("full", *NINE[-4:], LONG), (64, 128, 256, 512)))
    boxes = titles(figure)
    legend = figure.axes[0].get_legend().get_window_extent()
    assert not any(legend.overlaps(box) for box in boxes)
    assert legend.x1 <= figure.bbox.x1 and legend.y1 <= figure.bbox.y1


def test_tasks_that_do_not_count_are_not_drawn(tmp_path: Path) -> None:
    report = a_report(modes=("aware", "agnostic")) | {"hit_rate": []}
    for row in report["results"]:
        row["counts"] = row["mode"] == "aware"
    drawn = {Path(name).stem for name in plots.draw(report, tmp_path)}
    assert drawn == {"accuracy_by_budget", "depth_by_length_aware"}


def test_each_depth_map_shows_the_means_of_its_cache() -> None:
    report = a_report(budgets=(64, 128), lengths=(256,), depths=(0.0, 1.0))
    figure = plots.depths(report, "aware")
    for row in report["results"]:
        title = f"{row['system']}\n{row['slots']} slots"
        (axes,) = (axes for axes in figure.axes if axes.get_title() == title)
        written = [text.get_text() for text in axes.texts]
        assert written == [f"{score:.2f}" for score in row["by_depth"].values()]
