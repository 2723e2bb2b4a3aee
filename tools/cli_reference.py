"""Writes docs/reference/cli.md from the command line's own parsers.

Names no command: the page lists all commands of `snapexport --help`.
"""

import argparse
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from snapexport.cli.app import parser

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "cli.md"

HOMES = ("build", "generate", "serve")
"""Commands that describe the flags that others have too."""
LEAST_SHARED = 3
"""Fewer shared flags are described again."""

HEAD = """# Command line

`snapexport COMMAND --help` shows examples and the flags that most people need, `--help-all` every
flag, as this page does. Results go to standard output, progress and notes to standard error.
Tokens may be written as 32k (32,768), budgets as a part of L_max (1/4), bytes as 16GiB. Wrong input
ends with exit status 2 and two lines on standard error: `error:` says what is wrong, `hint:` what
to do. A defect of snapexport ends with exit status 70 and `error: internal: ...`; `snapexport
--traceback COMMAND ...` prints where it happened.

"""


def main() -> None:
    """Write the page."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--out", type=Path, default=PAGE, metavar="FILE")
    arguments.parse_args().out.write_text(render())


def render() -> str:
    """Render the whole page."""
    commands = subcommands(parser())
    contents = " | ".join(f"[{name}](#snapexport-{name})" for name in commands)
    homes = dict[str, str]()
    for name in sorted(commands, key=lambda name: (name not in HOMES, name)):
        for action in commands[name]._actions:
            homes.setdefault(_row(action), name)
    return HEAD + contents + "\n" + "".join(_section(one, homes) for one in commands.values())


def subcommands(root: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parser of each command, in the order of `--help`."""
    (commands,) = (one for one in root._actions if isinstance(one, argparse._SubParsersAction))
    return dict(commands.choices)


def _section(command: argparse.ArgumentParser, homes: Mapping[str, str]) -> str:
    """A command's text. homes: the command that describes a flag, by the flag's row."""
    text = (command.description or "").partition("\n\nexample")[0]
    return "\n".join([f"\n## {command.prog}\n", text.strip() + "\n", *_tables(command, homes)])


def _tables(command: argparse.ArgumentParser, homes: Mapping[str, str]) -> Iterator[str]:
    """A table for each group of flags, then the names of flags that other commands describe."""
    mine = command.prog.partition(" ")[2]
    actions = [action for action in command._actions if action.dest != "help"]
    shared: dict[str, list[argparse.Action]] = {}
    for action in actions:
        if action.option_strings and (home := homes[_row(action)]) != mine:
            shared.setdefault(home, []).append(action)
    shared = {home: found for home, found in shared.items() if len(found) >= LEAST_SHARED}
    elsewhere = [action for found in shared.values() for action in found]
    tables: dict[str, list[str]] = {}
    for group in command._action_groups:
        rows = [_row(a) for a in group._group_actions if a in actions and a not in elsewhere]
        usual = group.title in ("positional arguments", "options")
        tables.setdefault("" if usual else str(group.title), []).extend(rows)
    for title, rows in tables.items():
        if rows:
            yield "\n".join([f"| {title} | |", "|---|---|", *rows]) + "\n"
    for home, found in shared.items():
        names = ", ".join(f"`{', '.join(action.option_strings)}`" for action in found)
        yield f"As in [{home}](#snapexport-{home}): {names}.\n"


def _row(action: argparse.Action) -> str:
    values = "" if action.nargs == 0 else f" {_metavar(action)}"
    name = ", ".join(action.option_strings) + values if action.option_strings else _metavar(action)
    required = " (required)" if action.option_strings and action.required else ""
    return f"| `{_cell([name])}` | {_cell([(action.help or '') % vars(action)])}{required} |"


def _metavar(action: argparse.Action) -> str:
    name = "{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.metavar
    name = str(name or action.dest.upper())
    return f"{name} [{name} ...]" if action.nargs == "+" else name


def _cell(texts: Iterable[str]) -> str:
    return " ".join(" ".join(texts).split()).replace("|", "\\|")


if __name__ == "__main__":
    main()
