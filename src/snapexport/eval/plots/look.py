"""What all the pictures of an evaluation have in common: names, and who is in a report."""

import re
from typing import Any

Report = dict[str, Any]

MAP = "viridis"
MODES = {
    "aware": "question in the prompt",
    "agnostic": "question after compression",
    "late": "asked again later",
}
NAME_WIDTH = 24
"""Characters after which a name is broken, if it can be."""


def names_in(report: Report) -> list[str]:
    """The contestants, each once, in the order of the report."""
    return list(dict.fromkeys(one["contestant"] for one in report["contestants"]))


def full_in(report: Report) -> set[str]:
    """Those that keep everything."""
    return {one["contestant"] for one in report["contestants"] if one["policy"] == "full"}


def compressing_in(report: Report) -> list[str]:
    """Their places give them their colours, the same in all pictures."""
    return [name for name in names_in(report) if name not in full_in(report)]


def budgets_in(report: Report) -> list[int]:
    """Slots of the others, ascending."""
    return sorted({one["slots"] for one in report["contestants"] if one["policy"] != "full"})


def broken(name: str) -> str:
    """A name in lines of NAME_WIDTH, broken after its colon and commas alone."""
    lines = [""]
    for part in re.findall(r"[^:,]+[:,]?", name):
        if lines[-1] and len(lines[-1] + part) > NAME_WIDTH:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)
