"""Keeps the results of an experiment, which may go on from the rows of its file."""

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from snapexport.errors import UserError
from snapexport.measure.bench import results
from snapexport.measure.bench.results import FORMAT
from snapexport.measure.bench.turns import Row, six_digits

_WIDE = 0.2
"""Of the median."""


class Results(results.Results):
    """The results of one experiment."""

    def resume(self) -> None:
        """Take the rows of the file over. Raises UserError for a file of something else."""
        if self.path is None or not self.path.is_file():
            return
        found, now = read(self.path), self.as_json()
        same = {name: found[name] == now[name] for name in ("settings", "device")}
        same["GPU"] = found["machine"].get("gpu") == now["machine"].get("gpu")
        for name in (name for name, is_same in same.items() if not is_same):
            raise UserError(
                f"{self.path} has rows of other {name}", "choose another --out, or no --resume"
            )
        self.sections.update(found["sections"])
        self.notes = found["notes"]

    def has(self, section: str, labels: Row) -> bool:
        wanted = json.loads(json.dumps(labels)).items()
        return any(wanted <= row.items() for row in self.sections.get(section, []))


def read(path: Path) -> Row:
    """A results file. Raises UserError."""
    try:
        report = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is no results file: {error}", "run the experiment") from None
    if not isinstance(report, dict) or report.get("format") != FORMAT:
        raise UserError(f"{path} is of another format than {FORMAT}", "run the experiment again")
    sections: dict[str, list[Row]] = defaultdict(list, report["sections"])
    return report | {"sections": sections}


def spread_ms(row: Row | None) -> str:
    """The median in milliseconds; with the middle half where that is wide."""
    if not row:
        return ""
    low, middle, high = (1e3 * row["seconds"][name] for name in ("q1", "median", "q3"))
    wide = high - low > _WIDE * middle
    return f"{middle:.1f} ({low:.1f} - {high:.1f})" if wide else f"{middle:.1f}"


def tail(values: Sequence[float]) -> Row:
    """The median of at least one value, and what one in 10 and one in 100 exceeds."""
    found = map(six_digits, np.percentile(values, (50, 90, 99)).tolist())
    return {"samples": len(values)} | dict(zip(("median", "p90", "p99"), found, strict=True))
