"""Prints what `snapexport eval --out` left as the tables of docs/quality.md.

usage: python -m tools.studies.quality.real_model_tables FOLDER... [--against FOLDER]

Records of all folders are put together: a cache of one evaluation is compared with a cache of
another one passage by passage, where both have the passage. With --against losses are those
against the full cache of that evaluation, which may be of another build.
"""

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from snapexport.measure.eval.records import JOURNAL, Answer, Continuation, Outcome, answer_rows

REFERENCE = "streaming"
"""The cache from which others' losses are subtracted."""

Record = TypeVar("Record", Outcome, Continuation, Answer)
Row = Sequence[str]


def records(folder: Path) -> list[dict[str, Any]]:
    """The lines of an evaluation's journal, without the fingerprint."""
    return [json.loads(line) for line in (folder / JOURNAL).read_text().splitlines()[1:]]


def unique(found: Iterable[Record]) -> list[Record]:
    """The first record of each key: two evaluations may share the full cache's."""
    kept: dict[object, Record] = {}
    for one in found:
        kept.setdefault(one.key, one)
    return list(kept.values())


def mean(values: Sequence[float], sign: str = "") -> str:
    """Such as ".038 (.016)": the mean and its standard error."""
    found = bare(statistics.fmean(values), sign)
    if len(values) == 1:
        return found
    return f"{found} ({bare(statistics.stdev(values) / math.sqrt(len(values)))})"


def bare(value: float, sign: str = "") -> str:
    """Three decimals without the zero before the point."""
    return f"{value:{sign}.3f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:{sign}.3f}"


def table(head: Row, rows: Iterable[Row]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def texts(found: Sequence[Continuation], length: int) -> Iterator[str]:
    """The tables of one length of prompts on running text."""
    rows = [one for one in found if one.length == length]
    full = [one.nll for one in rows if one.system == "full"]
    caches = [one for one in rows if one.system != "full"]
    slots = sorted({one.slots for one in caches}, reverse=True)
    yield f"{length} tokens: n = {len(full)}, the full cache's own {mean(full)}\n"
    columns: dict[str, Callable[[Continuation], float]] = {
        "lost": lambda one: one.nll - one.full_nll,
        "KL": lambda one: one.kl,
        "same token": lambda one: one.agreement,
    }
    names = list(dict.fromkeys(one.system for one in caches))
    for title, column in columns.items():
        body = [[name, *cells(caches, name, slots, column)] for name in names]
        yield table([title, *map(str, slots)], body)
    body = [[name, *differences(caches, name, slots)] for name in names if name != REFERENCE]
    yield table([f"less {REFERENCE}", *map(str, slots)], body)


def cells(
    found: Sequence[Continuation],
    name: str,
    slots: Sequence[int],
    column: Callable[[Continuation], float],
) -> list[str]:
    """One cache's means by its slots."""
    own = [[column(one) for one in found if (one.system, one.slots) == (name, n)] for n in slots]
    return [mean(values) if values else "" for values in own]


def differences(found: Sequence[Continuation], name: str, slots: Sequence[int]) -> list[str]:
    """Loss less that of streaming on the same passages."""
    losses = {(one.system, one.slots, one.passage): one.nll for one in found}
    own = [
        [
            nll - losses[REFERENCE, n, passage]
            for (system, its, passage), nll in losses.items()
            if (system, its) == (name, n) and (REFERENCE, n, passage) in losses
        ]
        for n in slots
    ]
    return [mean(values, "+") if values else "" for values in own]


def against(found: Sequence[Continuation], others: Sequence[Continuation]) -> str:
    """What caches lose of the others' full cache's log likelihood, passage by passage."""
    full = {(one.length, one.passage): one.nll for one in others if one.system == "full"}
    losses: dict[tuple[int, str, int], list[float]] = {}
    for one in found:
        if (one.length, one.passage) in full:
            loss = one.nll - full[one.length, one.passage]
            losses.setdefault((one.length, one.system, one.slots), []).append(loss)
    body = [[*map(str, key), str(len(own)), mean(own)] for key, own in losses.items()]
    return table(("tokens", "cache", "slots", "passages", "lost against it"), body)


def continuations(folders: Iterable[str]) -> list[Continuation]:
    """The records on running text."""
    lines = chain.from_iterable(records(Path(folder)) for folder in folders)
    return unique(Continuation(**one) for one in lines if "nll" in one)


def needles(found: Sequence[Outcome]) -> str:
    """Prompts answered, by task, mode, cache and slots."""
    groups: dict[tuple[str, str, str, int], list[float]] = {}
    for one in found:
        groups.setdefault((one.task, one.mode, one.system, one.slots), []).append(one.score)
    body = [[*map(str, key), f"{sum(s):g} of {len(s)}"] for key, s in sorted(groups.items())]
    return table(("task", "mode", "cache", "slots", "answered"), body)


def answers(found: Sequence[Answer]) -> str:
    """Where answers part from the full cache's."""
    head = "cache", "slots", "answers", "equal tokens (quartiles)", "share", "whole"
    return table(head, (parted(row) for row in answer_rows(found)))


def side_by_side(found: Sequence[Answer]) -> Iterator[str]:
    """The beginnings of the answers to each instruction about one passage, caches by slots."""
    slots = sorted({one.slots for one in found if one.system != "full"}, reverse=True)
    names = [one for one in dict.fromkeys(answer.system for answer in found) if one != "full"]
    for instruction in dict.fromkeys(one.instruction for one in found):
        texts = {
            (one.system, one.slots): beginning(one.text)
            for one in found
            if one.instruction == instruction
        }
        (full,) = (text for (system, _), text in texts.items() if system == "full")
        body = [[name, *(texts.get((name, n), "") for n in slots)] for name in names]
        yield f"**{instruction}** The full cache: {full}\n"
        yield table(["", *(f"{n} slots" for n in slots)], body)


def beginning(text: str, most: int = 160) -> str:
    """The first words of a text, in one line of a table."""
    line = " ".join(text.split()).replace("|", "\\|")
    if len(line) <= most:
        return line
    words, _, _ = line[:most].rpartition(" ")
    return f"{words or line[:most]} [...]"


def parted(row: dict[str, Any]) -> Row:
    """A cache's row of that table."""
    low, median, high = (f"{one:g}" for one in row["equal_quartiles"])
    share = f"{bare(row['share'])} ({bare(row['share_stderr'] or 0)})"
    counts = str(row["slots"]), str(row["answers"])
    return row["system"], *counts, f"{median} ({low} to {high})", share, bare(row["whole"])


def main(given: Sequence[str]) -> None:
    """Print the tables of all the folders' records, a record of two folders once."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folders", nargs="+", metavar="FOLDER")
    parser.add_argument("--against", metavar="FOLDER")
    arguments = parser.parse_args(given)
    folders = arguments.folders
    lines = list(chain.from_iterable(records(Path(folder)) for folder in folders))
    forced = continuations(folders)
    if arguments.against:
        print(against(forced, continuations([arguments.against])))
        return
    for length in sorted({one.length for one in forced}):
        print("\n".join(texts(forced, length)))
    if outcomes := unique(Outcome(**one) for one in lines if "task" in one):
        print(needles(outcomes))
    if written := unique(Answer(**one) for one in lines if "instruction" in one):
        print(answers(written))
        if len({one.passage for one in written}) == 1:
            print("\n".join(side_by_side(written)))


if __name__ == "__main__":
    main(sys.argv[1:])
