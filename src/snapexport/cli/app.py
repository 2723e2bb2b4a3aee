"""Parses the command line, runs one command, and prints every error in one form.

error: what is wrong
<blank line>
hint: what to do                                                        (exit status 2)

An exception that nobody expected is a defect of snapexport: `error: internal: ...`, exit status 70.
"""

import os
import shlex
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

import snapexport
from snapexport.cli.help import Parser
from snapexport.cli.signals import end_on_signals
from snapexport.errors import UserError, first_line
from snapexport.files.nearby import closest, did_you_mean


class _Commands(Mapping[str, Any]):
    """The module of each command, loaded when it is asked for."""

    _names = "plan build generate chat ask inspect diff lint engine genai triton serve dynamo eval"
    _names += " calibrate bench demo cache"

    def __getitem__(self, name: str) -> Any:
        if name not in self:
            raise KeyError(name)
        return import_module(f"snapexport.cli.{'evaluate' if name == 'eval' else name}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._names.split())

    def __len__(self) -> int:
        return len(self._names.split())

    def __contains__(self, name: object) -> bool:
        return name in self._names.split()


COMMANDS: Mapping[str, Any] = _Commands()
BAD_INPUT = 2
INTERNAL = 70
"""EX_SOFTWARE of sysexits.h."""
TRACEBACK = "--traceback"


def parser(names: Iterable[str] = COMMANDS) -> Parser:
    """The commands of these names and their flags."""
    root = Parser(prog="snapexport", description=snapexport.__doc__)
    root.add_argument("--version", action="version", version=f"snapexport {snapexport.__version__}")
    root.add_argument(
        TRACEBACK, action="store_true", help="print the traceback of an internal error"
    )
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in names:
        command = COMMANDS[name]
        one = commands.add_parser(name, help=command.HELP, description=command.__doc__)
        command.add_arguments(one)
        one.hide_rare(name)
    return root


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit status."""
    end_on_signals()
    words = sys.argv[1:] if argv is None else argv
    try:
        arguments = parser(_names_in(words)).parse_args(words)
        from snapexport.cli import progress

        progress.choose(getattr(arguments, "progress", "auto"))
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
    except MemoryError:
        return _print_error("there is not enough memory", "see what it takes: `snapexport plan`")
    except Exception as error:
        return _print_internal(error, words)


def _names_in(words: Sequence[str]) -> Iterable[str]:
    """The command of the words, whose module is the only one to load; all without one.

    Raises UserError for a word that is not a command.
    """
    word = next((word for word in words if not word.startswith("-")), None)
    if word is None:
        return COMMANDS
    if word not in COMMANDS:
        raise UserError(
            f"there is no command '{word}'",
            f"{did_you_mean(closest(word, COMMANDS))}see `snapexport --help`",
        )
    return [word]


def _print_error(message: str, hint: str) -> int:
    from snapexport.cli.console import fold  # only where it is needed: it loads rich

    text = f"error: {_printable(message)}\n\nhint: {_printable(hint)}"
    print(fold(text) if sys.stderr and sys.stderr.isatty() else text, file=sys.stderr)
    return BAD_INPUT


def _print_internal(error: Exception, words: Sequence[str]) -> int:
    """A defect: the user can only report it."""
    if TRACEBACK in words[:1]:
        traceback.print_exception(error)
    repeated = shlex.join(["snapexport", TRACEBACK, *(word for word in words if word != TRACEBACK)])
    _print_error(
        f"internal: {type(error).__name__}: {first_line(error)}",
        f"this is a defect of snapexport: please report it, with what `{repeated}` prints",
    )
    return INTERNAL


def _printable(text: str) -> str:
    """The text without what a terminal takes for commands, which names of files may hold."""
    return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)
