"""Writes docs/reference/combinations.md from the table of exclusions.

Names no rule: the page lists those of builds, of each cache method, and of runs.
"""

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from string import Formatter
from typing import Any

from snapexport.contract.exclusions import broken, build_rules, run_rules
from snapexport.contract.rule import Choice, Rule
from snapexport.contract.targets import TARGETS
from snapexport.files.dtypes import DTYPES

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "combinations.md"

HEAD = """# What goes with what

`python tools/combinations.py` writes this page from the table that `build`, `plan`, the manifest's
reader and all that runs a build ask (`contract/exclusions.py`), and a test holds it current. A
refused pair ends with exit status 2, the reason and what to do instead.

A number says that two choices are refused together, and names the reason below. All other pairs go
together. X is any value that is given, or of a few flags any but the default.
"""
FLAGS = """
## Flags of a build

"""
BY_TARGET = """
## Targets

The values of `--dtype` that a choice goes with.

"""
RUN = """
## At run time

Flags of what runs a build, with each other and with kinds of builds.

"""
REASONS = """
## Reasons

"""


def main() -> None:
    """Write the page."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--out", type=Path, default=PAGE, metavar="FILE")
    arguments.parse_args().out.write_text(render())


def render() -> str:
    """Render the whole page."""
    pairs = [rule for rule in build_rules() if rule.other.example]
    by_target = [rule for rule in build_rules() if not rule.other.example]
    reasons = list(dict.fromkeys(map(_reason, (*pairs, *run_rules()))))
    return "".join(
        (
            HEAD,
            FLAGS,
            *_pairs(pairs, reasons),
            BY_TARGET,
            *_targets(by_target),
            RUN,
            *_pairs(run_rules(), reasons),
            REASONS,
            *(f"{number}. {reason}\n" for number, reason in enumerate(reasons, 1)),
        )
    )


def _pairs(rules: Sequence[Rule], reasons: Sequence[str]) -> Iterator[str]:
    """A matrix, and below it, as a list, the choices that only one rule names as its other."""
    counts = Counter(_name(rule.other) for rule in rules)
    yield from _matrix(rules, [name for name, count in counts.items() if count > 1], reasons)
    grouped: dict[tuple[str, str], list[str]] = {}
    for rule in rules:
        if counts[_name(rule.other)] == 1:
            key = _name(rule.choice), _number(rule, reasons)
            grouped.setdefault(key, []).append(_name(rule.other))
    yield "\n"
    rows = ([choice, ", ".join(others), number] for (choice, number), others in grouped.items())
    yield from _table(["", "not with", "reason"], rows)


def _matrix(rules: Sequence[Rule], names: Sequence[str], reasons: Sequence[str]) -> Iterator[str]:
    """names: of the columns. Rows that are refused alike are one."""
    rows = {_name(rule.choice): rule.choice for rule in reversed(rules)}
    columns = {_name(rule.other): rule.other for rule in reversed(rules)}
    alike: dict[tuple[str, ...], list[str]] = {}
    for row in dict.fromkeys(_name(rule.choice) for rule in rules):
        cells = tuple(_cell(rows[row], columns[column], rules, reasons) for column in names)
        alike.setdefault(cells, []).append(row)
    alike.pop(("",) * len(names), None)
    yield from _table(["", *names], ([", ".join(same), *cells] for cells, same in alike.items()))


def _cell(row: Choice, column: Choice, rules: Sequence[Rule], reasons: Sequence[str]) -> str:
    """The reason of the first rule that refuses the two; empty if none does."""
    named = [rule for rule in rules if _names(rule) == (_name(row), _name(column))]
    if named:
        return _number(named[0], reasons)
    if row.example.keys() & column.example.keys():  # two values of one flag
        return ""
    if _name(row).endswith(" X`"):  # only some values may be refused
        return ""
    facts = {**row.example, **column.example}
    found = [rule for rule in broken(facts) if rule in rules]
    return _number(found[0], reasons) if found else ""


def _number(rule: Rule, reasons: Sequence[str]) -> str:
    return str(1 + reasons.index(_reason(rule)))


def _names(rule: Rule) -> tuple[str, str]:
    return _name(rule.choice), _name(rule.other)


def _targets(rules: Sequence[Rule]) -> Iterator[str]:
    choices = {_name(rule.choice): rule.choice for rule in rules}
    if any(_name(rule.choice) == "`--cache-dtype X`" for rule in rules):
        stored = choices.pop("`--cache-dtype X`")
        choices |= {
            f"`--cache-dtype {dtype}`": Choice("", {"cache_dtype": dtype}, stored.holds)
            for dtype in ("fp16", "int8")
        }
    rows = (
        [name, *(_dtypes(choice.example, target) for target in TARGETS)]
        for name, choice in choices.items()
    )
    yield from _table(["", *(f"`{target}`" for target in TARGETS)], rows)


def _dtypes(facts: Any, target: str) -> str:
    fitting = [
        dtype
        for dtype in DTYPES
        if not any(
            not rule.other.example for rule in broken({**facts, "target": target, "dtype": dtype})
        )
    ]
    return "all" if len(fitting) == len(DTYPES) else ", ".join(fitting) or "no"


def _name(choice: Choice) -> str:
    """A choice as a head of the table: X for a value that the rule does not name."""
    fields = [field for _, field, _, _ in Formatter().parse(choice.text) if field]
    text = choice.text.format_map(dict.fromkeys(fields, "X"))
    name = f"`{text}`" if text.startswith("--") else text
    return f"no {name}" if choice.joined == "without" else name


def _reason(rule: Rule) -> str:
    why = rule.why or "the pair is not implemented"
    return f"{why[0].upper()}{why[1:]}. Instead: {rule.way_out}."


def _table(head: Sequence[str], rows: Iterator[list[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |\n"
    yield "|" + "---|" * len(head) + "\n"
    yield from (f"| {' | '.join(row)} |\n" for row in rows)


if __name__ == "__main__":
    main()
