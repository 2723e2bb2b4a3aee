"""Parses the command line, runs one command, and prints every error in one form.

error: what is wrong
<blank line>
hint: what to do                                                        (exit status 2)
"""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from rich_argparse import RawDescriptionRichHelpFormatter

import snapexport
from snapexport.cli import (
    bench,
    build,
    demo,
    diff,
    engine,
    evaluate,
    generate,
    inspect,
    lint,
    plan,
    serve,
    triton,
)
from snapexport.cli.renamed import require_current_flags
from snapexport.cli.signals import end_on_signals
from snapexport.contract.errors import UserError

COMMANDS = {
    "plan": plan,
    "build": build,
    "generate": generate,
    "inspect": inspect,
    "diff": diff,
    "lint": lint,
    "engine": engine,
    "triton": triton,
    "serve": serve,
    "eval": evaluate,
    "bench": bench,
    "demo": demo,
}
BAD_INPUT = 2


class Parser(argparse.ArgumentParser):
    """Raises a UserError for a wrong argument."""

    def error(self, message: str) -> NoReturn:
        raise UserError(message, f"see `{self.prog} --help`")


def parser() -> Parser:
    """All the commands and their flags."""
    root = Parser(
        prog="snapexport",
        description=snapexport.__doc__,
        formatter_class=RawDescriptionRichHelpFormatter,
        allow_abbrev=False,
    )
    root.add_argument("--version", action="version", version=f"snapexport {snapexport.__version__}")
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        one = commands.add_parser(
            name,
            help=command.HELP,
            description=command.__doc__,
            formatter_class=RawDescriptionRichHelpFormatter,
            allow_abbrev=False,
        )
        command.add_arguments(one)
    return root


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit status."""
    end_on_signals()
    words = sys.argv[1:] if argv is None else argv
    try:
        require_current_flags(words)
        arguments = parser().parse_args(words)
        status: int = COMMANDS[arguments.command].run(arguments)
        return status
    except UserError as error:
        return _print_error(error.message, error.hint)
    except BrokenPipeError:
        # The reader is gone: what is left in the buffer must not raise again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        place = error.filename2 or error.filename  # of a copy, the second is the target
        where = f": {place}" if place else ""
        return _print_error(
            f"{error.strerror or error}{where}",
            "check the path, its permissions and the free space",
        )


def _print_error(message: str, hint: str) -> int:
    print(f"error: {message}\n\nhint: {hint}", file=sys.stderr)
    return BAD_INPUT
