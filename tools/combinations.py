"""Writes docs/reference/combinations.md from the table of exclusions.

Names no rule: the page lists all of `contract/exclusions.py`.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from string import Formatter
from typing import Any

from snapexport.contract.exclusions import RULES, Choice, Rule, broken
from snapexport.contract.targets import TARGETS
from snapexport.files.dtypes import DTYPES

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "combinations.md"

HEAD = """# What goes with what

`python tools/combinations.py` writes this page from the table that `snapexport build` and `plan`
ask (`contract/exclusions.py`), and a test holds it current. A refused pair ends with exit status 2,
the reason and what to do instead.
"""
FLAGS = """
## Flags

A number says that the two are refused together, and names the reason below. All other pairs go
together; an empty cell is two values of one flag. X is any value.

"""
BY_TARGET = """
## Targets

The values of `--dtype` that a choice goes with.

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
    pairs = [rule for rule in RULES if rule.other.example]
    reasons = list(dict.fromkeys(map(_reason, pairs)))
    return "".join(
        (
            HEAD,
            FLAGS,
            *_matrix(pairs, reasons),
            BY_TARGET,
            *_targets([rule for rule in RULES if not rule.other.example]),
            REASONS,
            *(f"{number}. {reason}\n" for number, reason in enumerate(reasons, 1)),
        )
    )


def _matrix(rules: Sequence[Rule], reasons: Sequence[str]) -> Iterator[str]:
    rows = {_name(rule.choice): rule.choice for rule in reversed(rules)}
    columns = {_name(rule.other): rule.other for rule in reversed(rules)}
    names = list(dict.fromkeys(_name(rule.other) for rule in rules))
    yield from _table(
        ["", *names],
        (
            [row, *(_cell(rows[row], columns[column], rules, reasons) for column in names)]
            for row in dict.fromkeys(_name(rule.choice) for rule in rules)
        ),
    )


def _cell(row: Choice, column: Choice, rules: Sequence[Rule], reasons: Sequence[str]) -> str:
    """The reason of the first rule that refuses the two; empty for two values of one flag."""
    named = [rule for rule in rules if _names(rule) == (_name(row), _name(column))]
    if named:
        return str(1 + reasons.index(_reason(named[0])))
    if row.example.keys() & column.example.keys():
        return ""
    if _name(row).endswith(" X`"):  # only some values may be refused
        return "yes"
    facts = {**row.example, **column.example}
    found = [rule for rule in broken(facts) if rule in rules]
    return str(1 + reasons.index(_reason(found[0]))) if found else "yes"


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
    return f"`{text}`" if text.startswith("--") else text


def _reason(rule: Rule) -> str:
    why = rule.why or "the pair is not implemented"
    return f"{why[0].upper()}{why[1:]}. Instead: {rule.way_out}."


def _table(head: Sequence[str], rows: Iterator[list[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |\n"
    yield "|" + "---|" * len(head) + "\n"
    yield from (f"| {' | '.join(row)} |\n" for row in rows)


if __name__ == "__main__":
    main()
