"""Keeps the records of an evaluation on disk, and sums up the outcomes of tasks.

Knows no model: an outcome is what one system wrote for one sample in one mode.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from snapexport.errors import UserError
from snapexport.measure.eval.answers import Answer
from snapexport.measure.eval.continuations import Continuation
from snapexport.measure.eval.options import ABLE
from snapexport.measure.eval.summaries import mean, rows, stderr

JOURNAL = "samples.jsonl"

Key = tuple[str, int, str, str, int, int]


@dataclass(frozen=True)
class Outcome:
    """One answer.

    score: RULER's share of the right answers that occur in the text. first: whether the first token
    is right, which prefill gives away. rest: whether all further tokens equal the reference's.
    """

    system: str
    slots: int
    mode: str
    task: str
    length: int
    seed: int
    depth: float
    score: float
    first: bool
    rest: bool
    text: str
    expected: str

    @property
    def key(self) -> Key:
        """System and request: an evaluation has one outcome for each key."""
        return self.system, self.slots, self.mode, self.task, self.length, self.seed


Record = Outcome | Continuation | Answer


class Journal:
    """A file with a line for each record, so that a killed evaluation can go on.

    The first line has the fingerprint of the evaluation. records: those of the file when it was
    opened.
    """

    def __init__(self, directory: Path, fingerprint: str) -> None:
        """Open or begin the journal of `directory`. Raises UserError if it is another's."""
        self._path = directory / JOURNAL
        self._header = json.dumps({"fingerprint": fingerprint}) + "\n"
        self.records: list[Record] = []
        if self._path.is_file():
            self._read(fingerprint)
        elif directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise UserError(f"{directory} exists, and is no evaluation", "choose another --out")
        else:
            directory.mkdir(parents=True, exist_ok=True)

    def record(self, records: Iterable[Record]) -> Iterator[Record]:
        """Pass records on, each once it is on the disk. Before the first one the journal has none:
        what cannot run leaves it to another evaluation."""
        for record in records:
            with self._path.open("a") as file:
                header = "" if file.tell() else self._header
                file.write(header + json.dumps(asdict(record)) + "\n")
            yield record

    def _read(self, fingerprint: str) -> None:
        """Take the records so far. A line that a kill cut short is removed from the file."""
        written = self._path.read_bytes()
        whole = written[: written.rfind(b"\n") + 1]
        try:
            header, *rest = map(json.loads, whole.splitlines())
            known = header["fingerprint"]
            self.records = [_read_back(line) for line in rest]
        except (ValueError, KeyError, TypeError):
            known = None
        if known != fingerprint:
            raise UserError(
                f"{self._path.parent} holds another evaluation",
                "choose another --out, or go on with the same build, tasks and caches",
            )
        os.truncate(self._path, len(whole))


def _read_back(line: dict[str, Any]) -> Record:
    if "task" in line:
        return Outcome(**line)
    return Answer(**line) if "instruction" in line else Continuation(**line)


def results(outcomes: Iterable[Outcome]) -> list[dict[str, Any]]:
    """A row for each system, budget, mode, task and length, with the scores by depth.

    counts: whether the full cache can do the task, so that it tells caches apart.
    """
    found = rows(outcomes, ("system", "slots", "mode", "task", "length"), _summary)
    failed = {_asked(row) for row in found if row["system"] == "full" and row["score"] < ABLE}
    return [row | {"counts": _asked(row) not in failed} for row in found]


def _asked(row: Mapping[str, Any]) -> tuple[str, str, int]:
    return row["mode"], row["task"], row["length"]


def _summary(group: Sequence[Outcome]) -> dict[str, Any]:
    """Means. first_token, after_first: shares of the outcomes whose first token, or whose every
    further token, is the reference's."""
    by_depth = rows(group, ("depth",), lambda some: {"score": mean((o.score for o in some), 4)})
    return {
        "samples": len(group),
        "score": mean((outcome.score for outcome in group), 4),
        "stderr": stderr([outcome.score for outcome in group], 4),
        "first_token": mean((outcome.first for outcome in group), 4),
        "after_first": mean((outcome.rest for outcome in group), 4),
        "by_depth": {
            str(row["depth"]): row["score"]
            for row in sorted(by_depth, key=lambda row: float(row["depth"]))
        },
    }
