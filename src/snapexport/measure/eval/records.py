"""Keeps the records of an evaluation on disk, and sums them up: a row for each group of them.

Knows no model: a record is what one system wrote.
"""

import json
import math
import os
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from snapexport.errors import UserError
from snapexport.measure.options import ABLE

JOURNAL = "samples.jsonl"
_CACHE = "system", "slots", "length"


@dataclass(frozen=True)
class Outcome:
    """One answer to a task, of one system in one mode.

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
    def key(self) -> tuple[str, int, str, str, int, int]:
        """System and request: an evaluation has one outcome for each key."""
        return self.system, self.slots, self.mode, self.task, self.length, self.seed


@dataclass(frozen=True)
class Continuation:
    """One system along one passage after a prompt of `length` tokens; means over the tokens.

    tokens: how many were predicted. nll: negative log likelihood in nats. kl: KL(full || system) in
    nats. agreement: share of the tokens whose likeliest one is the full cache's.
    """

    system: str
    slots: int
    length: int
    passage: str
    tokens: int
    nll: float
    full_nll: float
    kl: float
    agreement: float

    @property
    def key(self) -> tuple[str, int, int, str]:
        """System and prompt: a measurement has one record for each key."""
        return self.system, self.slots, self.length, self.passage


@dataclass(frozen=True)
class Answer:
    """One system's answer to an instruction after `length` tokens of a passage.

    tokens, full_tokens: of this answer and of the full cache's, without the token that ends it.
    equal: tokens before the first one that differs. text: this answer.
    """

    system: str
    slots: int
    length: int
    passage: str
    instruction: str
    tokens: int
    full_tokens: int
    equal: int
    text: str

    @property
    def key(self) -> tuple[str, int, int, str, str]:
        """System and prompt: a measurement has one record for each key."""
        return self.system, self.slots, self.length, self.passage, self.instruction

    @property
    def is_whole(self) -> bool:
        """Whether the full cache writes the same from the first token to the last."""
        return self.equal == self.tokens == self.full_tokens


Record = Outcome | Continuation | Answer
Kind = TypeVar("Kind")


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
        else:
            require_place(directory)

    def record(self, records: Iterable[Record]) -> Iterator[Record]:
        """Pass records on, each once it is on the disk. Before the first one the journal has none:
        what cannot run leaves it to another evaluation."""
        for record in records:
            self._path.parent.mkdir(parents=True, exist_ok=True)
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


def require_place(directory: Path) -> None:
    """Raise UserError for a place that holds something other than an evaluation."""
    if (directory / JOURNAL).is_file() or not directory.exists():
        return
    if not directory.is_dir() or any(directory.iterdir()):
        raise UserError(f"{directory} exists, and holds no evaluation", "choose another --out")


def _read_back(line: dict[str, Any]) -> Record:
    if "task" in line:
        return Outcome(**line)
    return Answer(**line) if "instruction" in line else Continuation(**line)


def outcome_rows(outcomes: Iterable[Outcome]) -> list[dict[str, Any]]:
    """A row for each system, budget, mode, task and length, with the scores by depth.

    counts: whether the full cache can do the task. If not, the task does not distinguish caches.
    """
    found = rows(outcomes, ("system", "slots", "mode", "task", "length"), _of_outcomes)
    failed = {_request_of(row) for row in found if row["system"] == "full" and row["score"] < ABLE}
    return [row | {"counts": _request_of(row) not in failed} for row in found]


def _request_of(row: Mapping[str, Any]) -> tuple[str, str, int]:
    return row["mode"], row["task"], row["length"]


def _of_outcomes(group: Sequence[Outcome]) -> dict[str, Any]:
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


def continuation_rows(continuations: Iterable[Continuation]) -> list[dict[str, Any]]:
    """A row for each system, slots and length: means over passages, with standard errors."""
    return rows(continuations, _CACHE, _of_continuations)


def without_comparison(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row without what compares it with the full cache."""
    return {name: row[name] for name in row if not name.startswith(("loss", "kl", "agreement"))}


def _of_continuations(group: Sequence[Continuation]) -> dict[str, Any]:
    """loss: of log likelihood a token against the full cache. losses: each passage's, by name."""
    group = sorted(group, key=lambda one: one.passage)
    columns = {
        "nll": [record.nll for record in group],
        "loss": [record.nll - record.full_nll for record in group],
        "kl": [record.kl for record in group],
        "agreement": [record.agreement for record in group],
    }
    found: dict[str, Any] = {
        "passages": len(group),
        "tokens": sum(record.tokens for record in group),
    }
    for name, values in columns.items():
        found |= {name: mean(values), f"{name}_stderr": stderr(values)}
    return found | {"losses": [round(loss, 5) for loss in columns["loss"]]}


def answer_rows(answers: Iterable[Answer]) -> list[dict[str, Any]]:
    """A row for each system, slots and length, over passages and instructions."""
    return rows(answers, _CACHE, _of_answers)


def _of_answers(group: Sequence[Answer]) -> dict[str, Any]:
    """equal_quartiles: of the tokens before the first that differs. share: of the full cache's.

    equal: of each answer, by passage and instruction. whole: share of the answers that are the
    full cache's. An answer that never parts counts with its length.
    """
    group = sorted(group, key=lambda one: (one.passage, one.instruction))
    shares = [answer.equal / answer.full_tokens if answer.full_tokens else 1.0 for answer in group]
    quartiles = np.percentile([answer.equal for answer in group], (25, 50, 75))
    return {
        "answers": len(group),
        "tokens": mean((answer.tokens for answer in group), digits=1),
        "equal_quartiles": [round(float(quartile), 2) for quartile in quartiles],
        "share": mean(shares),
        "share_stderr": stderr(shares),
        "whole": mean(answer.is_whole for answer in group),
        "equal": [answer.equal for answer in group],
    }


def rows(
    records: Iterable[Kind], fields: Sequence[str], summary: Callable[[list[Kind]], dict[str, Any]]
) -> list[dict[str, Any]]:
    """A row for each combination of the fields' values, in the order of its first record."""
    groups: dict[tuple[Any, ...], list[Kind]] = {}
    for record in records:
        groups.setdefault(tuple(getattr(record, field) for field in fields), []).append(record)
    return [dict(zip(fields, key, strict=True)) | summary(group) for key, group in groups.items()]


def mean(values: Iterable[float], digits: int = 5) -> float:
    """At least one value's, rounded."""
    return round(statistics.fmean(values), digits)


def stderr(values: Sequence[float], digits: int = 5) -> float | None:
    """The standard error of the mean; None for one value."""
    if len(values) < 2:
        return None
    return round(statistics.stdev(values) / math.sqrt(len(values)), digits)
