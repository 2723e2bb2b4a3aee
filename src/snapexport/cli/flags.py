"""Makes command-line flags from the fields of an options class: names, types and defaults.

Also writes the file that a flag names, whole or not at all.
"""

import argparse
import dataclasses
import errno
import os
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

from snapexport.contract.memory import size
from snapexport.errors import UserError, flag_of
from snapexport.files import whole as files

GROUPS = ("cache", "advanced")
"""Groups of a build's flags beside those that users choose."""

BACKEND = {
    "backend": "what runs the build (default: tensorrt if it has engines, else onnxruntime)",
    "device": "where OpenVINO runs the build (default: CPU)",
    "precision": "what OpenVINO calculates in (default: f32)",
}
"""Help texts of fields of `LLMConfig` and `ServeOptions`."""

PROMPT_CACHE = {
    "prompt_cache": "folder that keeps prompts' caches: a prompt that begins like one of them, "
    "also after a restart, prefills only its end",
    "prompt_cache_size": "most bytes in that folder (default: 20GiB)",
}
"""The same."""

SERVED = {
    "name": "name of the model (default: the build directory's)",
    "max_pending": "requests that may wait for a batch slot; further ones are refused",
    "threads": "CPU threads (default: all cores)",
    "max_num_batched_tokens": "tokens of one step, prefill and decode (default: a prefill chunk "
    "and one for each batch slot)",
}
"""Help texts of `ModelOptions`, for each server's command."""


@dataclasses.dataclass(frozen=True)
class Share:
    """A part of L_max in the place of a number of tokens."""

    part: Fraction

    def of(self, L_max: int) -> int:
        """The number of tokens, at least one."""
        return max(1, int(L_max * self.part))


def tokens(text: str) -> int:
    """A number of tokens: 32768, or 32k for 32 x 1,024."""
    found = re.fullmatch(r"(-?[0-9][0-9_]*)(?:(\.[0-9]+)?([kKmM]))?", text.strip())
    number = found and Fraction((found[1] + (found[2] or "")).replace("_", ""))
    if found and number is not None:
        number *= {"": 1, "k": 1 << 10, "m": 1 << 20}[(found[3] or "").lower()]
        if number.denominator == 1:
            return int(number)
    raise argparse.ArgumentTypeError(f"'{text}' is not a number of tokens, such as 4096 or 32k")


def budget(text: str) -> int | Share:
    """Tokens, or a part of L_max: 1/4, 25% or 0.25."""
    with suppress(ValueError, ZeroDivisionError, argparse.ArgumentTypeError):
        if not re.search("[/%]|^ *0?[.]", text):
            return tokens(text)
        number, percent, _ = text.partition("%")
        if (part := Fraction(number) / (100 if percent else 1)) > 0:
            return Share(part)
    raise argparse.ArgumentTypeError(
        f"'{text}' is not a number of tokens, such as 4096 or 32k, nor a part of L_max, such as 1/4"
    )


def nbytes(text: str) -> int:
    """Bytes, such as 16GiB, 16GB (16 x 1000^3), 512M or 4096."""
    try:
        return size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


TOKENS, BUDGET, SIZE = "TOKENS", "BUDGET", "SIZE"
WRITTEN = {
    TOKENS: "TOKENS may be written as 32k (32,768)",
    BUDGET: "BUDGET as 8k, or as a part of L_max, such as 1/4",
    SIZE: "SIZE as 16GiB or 16GB",
}
"""How numbers may be written, by the metavars of their flags: the end of a help says it."""
_PARSERS: Mapping[str, Callable[[str], Any]] = {TOKENS: tokens, BUDGET: budget, SIZE: nbytes}
_UNITS: Mapping[str, str] = {
    **dict.fromkeys(
        "L_max L_sink L_obs prefill_chunk prefill_capacities max_tokens lengths "
        "max_num_batched_tokens compress_every contexts continuation".split(),
        TOKENS,
    ),
    **dict.fromkeys("kv_budget L_recent K budgets".split(), BUDGET),
    **dict.fromkeys(("parked_dir_bytes", "prompt_cache_size", "memory"), SIZE),
}
"""Metavars of fields that are tokens, budgets or bytes; others name theirs in their metadata."""


def add_fields(parser: argparse._ActionsContainer, options: type, helps: Mapping[str, str]) -> None:
    """Add a flag for every field named in `helps`: L_max becomes --L-max."""
    hints = typing.get_type_hints(options)
    for field in dataclasses.fields(options):
        if field.name in helps:
            _add_flag(parser, field, hints[field.name], helps[field.name])


def add_grouped(
    parser: argparse.ArgumentParser, options: Sequence[type], helps: Mapping[str, str]
) -> None:
    """Add the fields of several options classes, each in the group that its metadata names."""
    groups = {"": parser} | {title: parser.add_argument_group(title) for title in GROUPS}
    for kind in options:
        for field in dataclasses.fields(kind):
            if field.name in helps:
                add_fields(
                    groups[field.metadata.get("group", "")], kind, {field.name: helps[field.name]}
                )


def values(arguments: argparse.Namespace, names: Iterable[str], L_max: int = 0) -> dict[str, Any]:
    """Values of the flags of these fields, by field. L_max: what a `Share` is of."""
    return {name: _field_value(getattr(arguments, name), L_max) for name in names}


def _add_flag(
    parser: argparse._ActionsContainer, field: "dataclasses.Field[Any]", hint: Any, text: str
) -> None:
    name = flag_of(field.name)
    required = field.default is dataclasses.MISSING
    names_default = required or field.default in (None, ()) or "(default" in text
    if not names_default and hint is not bool:
        text += f" (default: {_spell(field.default)})"
    settings: dict[str, Any] = {"dest": field.name, "help": text, "required": required}
    settings["default"] = None if required else field.default
    is_switch = hint is not bool  # None stands for a default that depends on other flags
    hint = _without_none(hint)
    is_literal = typing.get_origin(hint) is typing.Literal
    if hint is bool and is_switch:
        parser.add_argument(name, action=argparse.BooleanOptionalAction, **settings)
    elif hint is bool:
        action = "store_false" if field.default else "store_true"
        parser.add_argument(name, action=action, **settings)
    elif choices := field.metadata.get("choices", typing.get_args(hint) if is_literal else ()):
        parser.add_argument(name, choices=choices, **settings)
    elif typing.get_origin(hint) is tuple:
        kind = typing.get_args(hint)[0]
        metavar = _metavar(field, kind)
        settings["nargs"] = field.metadata.get("nargs", "+")
        parse = _PARSERS.get(metavar, kind)
        parser.add_argument(name, type=parse, metavar=metavar, **settings)
    else:
        metavar = _metavar(field, hint)
        parse = _PARSERS.get(metavar, hint)
        parser.add_argument(name, type=parse, metavar=metavar, **settings)


def _metavar(field: "dataclasses.Field[Any]", kind: type) -> str:
    found = _UNITS.get(field.name) or field.metadata.get("metavar")
    return str(found or _METAVARS[kind])


_METAVARS: dict[type, str] = {int: "N", float: "X", str: "NAME", Path: "DIR"}


def _without_none(hint: Any) -> Any:
    """`int | None` is int."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        (hint,) = (kind for kind in typing.get_args(hint) if kind is not types.NoneType)
    return hint


def _spell(default: object) -> str:
    return " ".join(map(str, default)) if isinstance(default, tuple) else str(default)


def _field_value(given: Any, L_max: int) -> Any:
    """A flag with several values gives a list, but options need a tuple."""
    if isinstance(given, list):
        return tuple(_field_value(one, L_max) for one in given)
    return given.of(L_max) if isinstance(given, Share) else given


@contextmanager
def whole_file(path: Path, flag: str) -> Iterator[Callable[[str | bytes], None]]:
    """Yield a function that writes a content. `path` changes when the block ends without error.

    Raises a UserError before the block for a path that cannot be written.
    """
    target = Path(os.path.realpath(path))  # a symlink stays one
    partial = files.partial_path(target)
    with _write_errors(path, flag):
        _require_replaceable(target, flag)
        partial.touch()

    def write(content: str | bytes) -> None:
        with _write_errors(path, flag):  # as bytes: no newline is translated
            partial.write_bytes(content.encode() if isinstance(content, str) else content)

    try:
        yield write
        with _write_errors(path, flag):
            files.finish(target)
    finally:
        partial.unlink(missing_ok=True)


def require_writable(path: Path, flag: str) -> None:
    """Raise UserError for a path that `whole_file` could not write. It writes nothing."""
    target = Path(os.path.realpath(path))
    _require_replaceable(target, flag)
    with _write_errors(path, flag):
        if not os.access(target.parent, os.W_OK):
            target.parent.stat()  # which says why
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _require_replaceable(target: Path, flag: str) -> None:
    """Refuse a pipe or a device, which a rename would replace."""
    if target.exists() and not target.is_file():
        raise UserError(f"{target} is not a file", f"name a file for {flag}")


@contextmanager
def _write_errors(path: Path, flag: str) -> Iterator[None]:
    """Turn an OSError into a UserError."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}", f"check {flag}") from None
