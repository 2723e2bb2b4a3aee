"""Writes the table of weights in few bits into docs/quality.md, from results/.

python -m tools.studies.quality.weights_table
"""

from collections.abc import Iterator
from typing import Any

from tools.studies.quality.plots import ASSETS, WEIGHTS, report

PAGE = ASSETS.parent / "quality.md"
_MARKS = "<!-- weights -->\n", "<!-- end of weights -->\n"
_HEADS = "bits", "nats lost", "KL", "ms"


def table() -> Iterator[str]:
    """A row for each kind of weights, and columns for each model: ms where it was timed."""
    found = [{row["weights"]: row for row in report(name)["rows"]} for name in WEIGHTS.values()]
    timed = [any("step_ms" in row for row in rows.values()) for rows in found]
    heads, lines = ["weights"], "|---|"
    for model, has_times in zip(WEIGHTS, timed, strict=True):
        heads += [f"{model.rpartition('-')[0]}: {_HEADS[0]}", *_HEADS[1 : 3 + has_times]]
        lines += "---:|---|---:|" + "---:|" * has_times
    yield f"| {' | '.join(heads)} |"
    yield lines
    for name in dict.fromkeys(name for rows in found for name in rows):
        cells = [name]
        for rows, has_times in zip(found, timed, strict=True):
            cells += _cells(rows.get(name))[: 3 + has_times]
        yield f"| {' | '.join(cells)} |"


def _cells(row: dict[str, Any] | None) -> list[str]:
    if row is None:
        return [""] * len(_HEADS)
    nats = f"{_share(row['nats'])} ({_share(row['nats_se'])})"
    step = f"{row['step_ms']['median']:.1f}" if "step_ms" in row else ""
    return [f"{row['bits_per_weight']:.2f}", nats, _share(row["kl"]), step]


def _share(value: float) -> str:
    """Three digits after the point, without the zero before it."""
    return f"{value + 0.0:.3f}".replace("0.", ".", 1).replace("-.000", ".000")


def main() -> None:
    """Replace what is between the marks."""
    before, start, rest = PAGE.read_text().partition(_MARKS[0])
    _, end, after = rest.partition(_MARKS[1])
    assert start and end, f"{PAGE} has no {_MARKS}"
    PAGE.write_text("".join((before, start, *(f"{line}\n" for line in table()), end, after)))


if __name__ == "__main__":
    main()
