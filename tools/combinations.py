"""Writes docs/reference/combinations.md from the table of exclusions.

Names no rule: the page lists those of builds, of each cache method, and of runs.
"""

import argparse
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

`python tools/combinations.py` writes this page from every command's rules
(`contract/exclusions.py`). A refused pair ends with status 2, the reason and what to do
instead.

The number after a refused choice is that of its reason below. Other pairs go together, within the
bounds of their values. X is any value, of a few flags any but the default.
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

Where no other way is named, leave one of the two out.

"""
USUAL = ("leave it out", "leave one of them out")
"""Ways out that the page names once."""


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
    """A row for each choice, with what it does not go with. Choices that are refused alike are one.

    The number of the reason follows each refused choice.
    """
    rows = {_name(rule.choice): rule.choice for rule in reversed(rules)}
    columns = {_name(rule.other): rule.other for rule in reversed(rules)}
    columns = {_name(rule.other): columns[_name(rule.other)] for rule in rules}  # in their order
    alike: dict[str, list[str]] = {}
    for row in dict.fromkeys(_name(rule.choice) for rule in rules):
        cells = {name: _cell(rows[row], columns[name], rules, reasons) for name in columns}
        refused = ", ".join(f"{column} ({number})" for column, number in cells.items() if number)
        alike.setdefault(refused, []).append(row)
    table = ([", ".join(same), refused] for refused, same in alike.items())
    yield from _table(["", "not with (reason)"], table)


def _cell(row: Choice, column: Choice, rules: Sequence[Rule], reasons: Sequence[str]) -> str:
    """The reason of the first rule that refuses the two; empty if none does."""
    of_column = [rule for rule in rules if _name(rule.other) == _name(column)]
    named = [rule for rule in of_column if _name(rule.choice) == _name(row)]
    if named:
        return _number(named[0], reasons)
    if len(of_column) == 1:
        return ""
    if row.example.keys() & column.example.keys():  # two values of one flag
        return ""
    if _name(row).endswith(" X`"):  # only some values may be refused
        return ""
    facts = {**row.example, **column.example}
    found = [rule for rule in broken(facts) if rule in rules]
    return _number(found[0], reasons) if found else ""


def _number(rule: Rule, reasons: Sequence[str]) -> str:
    return str(1 + reasons.index(_reason(rule)))


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
    way_out = "" if rule.way_out in USUAL else f" Instead: {rule.way_out}."
    return f"{why[0].upper()}{why[1:]}.{way_out}"


def _table(head: Sequence[str], rows: Iterator[list[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |\n"
    yield "|" + "---|" * len(head) + "\n"
    yield from (f"| {' | '.join(row)} |\n" for row in rows)


if __name__ == "__main__":
    main()
