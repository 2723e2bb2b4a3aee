"""Keeps the records of an evaluation on disk, and sums up the outcomes of tasks.

Knows no model: an outcome is what one system wrote for one sample in one mode.
"""

import json
import math
import os
import statistics
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from snapexport.errors import UserError
from snapexport.measure.eval.answers import Answer
from snapexport.measure.eval.continuations import Continuation

JOURNAL = "samples.jsonl"

Group = TypeVar("Group", bound=Hashable)
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


Record = TypeVar("Record", Outcome, Continuation, Answer)


class Journal:
    """A file with a line for each record, so that a killed evaluation can go on.

    The first line has the fingerprint of the evaluation. outcomes, continuations, answers: those of
    the file when it was opened.
    """

    def __init__(self, directory: Path, fingerprint: str) -> None:
        """Open or begin the journal of `directory`. Raises UserError if it is another's."""
        self._path = directory / JOURNAL
        self.outcomes: list[Outcome] = []
        self.continuations: list[Continuation] = []
        self.answers: list[Answer] = []
        if self._path.is_file():
            self._read(fingerprint)
        elif directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise UserError(f"{directory} exists, and is no evaluation", "choose another --out")
        else:
            directory.mkdir(parents=True, exist_ok=True)
            self._path.write_text(json.dumps({"fingerprint": fingerprint}) + "\n")

    def record(self, records: Iterable[Record]) -> Iterator[Record]:
        """Pass records on, each once it is on the disk."""
        with self._path.open("a") as file:
            for record in records:
                file.write(json.dumps(asdict(record)) + "\n")
                file.flush()
                yield record

    def _read(self, fingerprint: str) -> None:
        """Take the records so far. A line that a kill cut short is removed from the file."""
        written = self._path.read_bytes()
        whole = written[: written.rfind(b"\n") + 1]
        try:
            header, *rest = map(json.loads, whole.splitlines())
            known = header["fingerprint"]
            self.outcomes = [Outcome(**line) for line in rest if "task" in line]
            others = [line for line in rest if "task" not in line]
            self.answers = [Answer(**line) for line in others if "instruction" in line]
            others = [line for line in others if "instruction" not in line]
            self.continuations = [Continuation(**line) for line in others]
        except (ValueError, KeyError, TypeError):
            known = None
        if known != fingerprint:
            raise UserError(
                f"{self._path.parent} holds another evaluation",
                "choose another --out, or go on with the same build, tasks and caches",
            )
        os.truncate(self._path, len(whole))


@dataclass(frozen=True)
class Summary:
    """Means over some outcomes. stderr: standard error of the score's mean; None for one outcome.

    first_token, after_first: shares of the outcomes whose first token, or whose every further
    token, is the reference's.
    """

    samples: int
    score: float
    stderr: float | None
    first_token: float
    after_first: float

    @classmethod
    def of(cls, outcomes: Sequence[Outcome]) -> "Summary":
        """At least one outcome."""
        count = len(outcomes)
        scores = [one.score for one in outcomes]
        return cls(
            count,
            round(sum(scores) / count, 4),
            round(statistics.stdev(scores) / math.sqrt(count), 4) if count > 1 else None,
            round(sum(one.first for one in outcomes) / count, 4),
            round(sum(one.rest for one in outcomes) / count, 4),
        )


def results(outcomes: Iterable[Outcome]) -> list[dict[str, Any]]:
    """A row for each system, budget, mode, task and length, with the scores by depth."""
    fields = ("system", "slots", "mode", "task", "length")
    groups = _grouped(outcomes, lambda one: tuple(getattr(one, field) for field in fields))
    return [
        dict(zip(fields, key, strict=True)) | asdict(Summary.of(group)) | _by_depth(group)
        for key, group in groups.items()
    ]


def _by_depth(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    depths = _grouped(outcomes, lambda one: one.depth)
    return {"by_depth": {str(depth): Summary.of(depths[depth]).score for depth in sorted(depths)}}


def _grouped(
    outcomes: Iterable[Outcome], key: Callable[[Outcome], Group]
) -> dict[Group, list[Outcome]]:
    """Outcomes by a key, in the order of their first."""
    groups: dict[Group, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        groups[key(outcome)].append(outcome)
    return dict(groups)
