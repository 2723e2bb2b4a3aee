"""Names what can become of a hostile input, and counts it."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

REFUSED = "refused"
"""By a UserError."""
VERIFY = "verify"
"""Accepted by a run, and refused by `inspect --verify`."""
SAME = "same"
"""Accepted, and what came out is as without the mutation."""
OTHER = "other"
"""Accepted, and another valid input: no file could tell that it was not meant."""
WRONG = "wrong"
"""Accepted, although it contradicts itself, another file, or the reference."""
TRACEBACK, HANG, MEMORY, DIED = "traceback", "hang", "memory", "died"

OUTCOMES = (REFUSED, VERIFY, SAME, OTHER, WRONG, TRACEBACK, HANG, MEMORY, DIED)
FAILED = frozenset({WRONG, TRACEBACK, HANG, MEMORY, DIED})


@dataclass(frozen=True)
class Result:
    """One case. mutation: what was done. detail: the error, or what differs."""

    index: int
    outcome: str
    mutation: str
    detail: str
    seconds: float = 0.0
    resident_mib: int = 0

    @property
    def failed(self) -> bool:
        return self.outcome in FAILED


@dataclass(frozen=True)
class Summary:
    kind: str
    seed: int
    results: Sequence[Result]

    @property
    def failures(self) -> list[Result]:
        return [one for one in self.results if one.failed]

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "seed": self.seed,
            "cases": len(self.results),
            "outcomes": dict(Counter(one.outcome for one in self.results)),
            "slowest_seconds": max((one.seconds for one in self.results), default=0.0),
            "most_resident_mib": max((one.resident_mib for one in self.results), default=0),
            "failures": [asdict(one) for one in self.failures],
        }


def table(summaries: Iterable[Summary]) -> str:
    """A line for each kind, in Markdown."""
    heads = ["kind", "tried", *OUTCOMES, "slowest", "memory"]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for summary in summaries:
        told = summary.as_json()
        counts = [str(told["outcomes"].get(name, 0)) for name in OUTCOMES]
        slowest, most = f"{told['slowest_seconds']:.1f} s", f"{told['most_resident_mib']} MiB"
        lines.append(
            "| " + " | ".join([summary.kind, str(told["cases"]), *counts, slowest, most]) + " |"
        )
    return "\n".join(lines)


def common_faults(summary: Summary, most: int = 12) -> list[str]:
    """The failures by their first words, most frequent first, with an index of each."""
    groups: dict[str, list[int]] = {}
    for one in summary.failures:
        groups.setdefault(f"{one.outcome}: {one.detail[:160]}", []).append(one.index)
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    return [f"{len(found)} x {text}  (such as case {found[0]})" for text, found in ordered[:most]]
