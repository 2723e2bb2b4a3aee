"""Reads the prompt of a command from its flags, a file or standard input."""

import argparse
import sys
from pathlib import Path

from snapexport.contract.errors import UserError


def add_arguments(parser: argparse.ArgumentParser, required: bool) -> None:
    """Add --prompt TEXT and --prompt-file FILE, of which one may be given."""
    group = parser.add_mutually_exclusive_group(required=required)
    group.add_argument("--prompt", metavar="TEXT", help="the prompt")
    group.add_argument("--prompt-file", metavar="FILE", help="a UTF-8 file; - for standard input")


def read(arguments: argparse.Namespace) -> str | None:
    """The text, or None where no flag was given. Raises UserError."""
    if arguments.prompt_file is None:
        return _valid(arguments.prompt)
    raw = _bytes(arguments.prompt_file)
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise UserError(
            f"the prompt is not UTF-8: {error.reason} at byte {error.start}",
            "convert it, for example with `iconv -t utf-8`",
        ) from None


def _bytes(name: str) -> bytes:
    if name == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {name}: {error.strerror}", "check --prompt-file") from None


def _valid(text: str | None) -> str | None:
    """The text, unless it was no UTF-8: such arguments reach Python as lone surrogates."""
    if text is not None and any("\ud800" <= character <= "\udfff" for character in text):
        raise UserError("--prompt is not UTF-8", "write the prompt to a file as UTF-8")
    return text
