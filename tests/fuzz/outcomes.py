"""Names what can become of a hostile input, and counts it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

REFUSED = "refused"
"""By a UserError."""
SAME = "same"
"""Accepted, and what came out is as without the mutation."""
OTHER = "other"
"""Accepted, and another valid input: no file could tell that it was not meant."""
WRONG = "wrong"
"""Accepted, although it contradicts itself, another file, or the reference."""
TRACEBACK, HANG, MEMORY, DIED = "traceback", "hang", "memory", "died"

OUTCOMES = (REFUSED, SAME, OTHER, WRONG, TRACEBACK, HANG, MEMORY, DIED)
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


def table(results: Mapping[str, Sequence[Result]]) -> str:
    """A line for each kind, in Markdown."""
    heads = ["kind", "tried", *OUTCOMES, "slowest", "memory"]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for kind, found in results.items():
        counts = Counter(result.outcome for result in found)
        slowest = max((result.seconds for result in found), default=0.0)
        most = max((result.resident_mib for result in found), default=0)
        cells = [kind, len(found), *(counts[name] for name in OUTCOMES)]
        cells += [f"{slowest:.1f} s", f"{most} MiB"]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)
