"""Writes docs/reference/cli.md from the command line's own parsers.

Names no command: the page lists all commands of `snapexport --help`.
"""

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path

from snapexport.cli.app import parser

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "cli.md"

HEAD = """# Command line

`python tools/cli_reference.py` writes this page from the parsers, and a test holds it current.

`snapexport COMMAND --help` shows the flags that most people need, `--help-all` every flag, as this
page does. Results go to standard output. Progress goes to standard error, if that is a terminal.
Wrong input ends with exit status 2 and two lines on standard error: `error:` says what is wrong,
`hint:` says what to do. A defect of snapexport ends with exit status 70 and `error: internal: ...`;
`snapexport --traceback COMMAND ...` prints where it happened.

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
    return HEAD + contents + "\n" + "".join(map(_section, commands.values()))


def subcommands(root: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parser of each command, in the order of `--help`."""
    (commands,) = (one for one in root._actions if isinstance(one, argparse._SubParsersAction))
    return dict(commands.choices)


def _section(command: argparse.ArgumentParser) -> str:
    text, _, examples = (command.description or "").strip().partition("\n\nexample")
    parts = [f"\n## {command.prog}\n", text.strip() + "\n", *_tables(command)]
    if examples:
        lines = examples.partition("\n")[2]
        parts.append("```\n" + "\n".join(line[2:] for line in lines.splitlines()) + "\n```\n")
    return "\n".join(parts)


def _tables(command: argparse.ArgumentParser) -> Iterator[str]:
    for group in command._action_groups:
        rows = [_row(action) for action in group._group_actions if action.dest != "help"]
        if rows:
            usual = group.title in ("positional arguments", "options")
            head = "" if usual else group.title
            yield "\n".join([f"| {head} | |", "|---|---|", *rows]) + "\n"


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
