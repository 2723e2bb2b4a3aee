"""Reads files that others wrote: regular ones, of a bounded size, and JSON that means one thing.

Checkpoints, builds, tokenizers and templates go through it. A FIFO, a device or a directory in
their place is refused before a byte is read. Knows no format beyond JSON.
"""

import codecs
import errno
import json
import math
import os
import re
import stat
from collections import Counter
from pathlib import Path
from typing import Any, BinaryIO

from snapexport.errors import UserError, first_line

MANIFEST_BYTES = 64 << 20
HEADER_BYTES = 64 << 20
"""Of a .safetensors file. The safetensors library reads up to 100 MB; 64 MiB is 500,000 tensors."""
INDEX_BYTES = 64 << 20
CONFIG_BYTES = 16 << 20
"""Of config.json, generation_config.json and tokenizer_config.json, which lists added tokens."""
TOKENIZER_BYTES = 128 << 20
"""Gemma 3's tokenizer.json has 33 MB."""
TEMPLATE_BYTES = 1 << 20
GRAPH_BYTES = 2 << 30
"""Protocol buffers end there."""

BY_ITSELF = "replace the link by the file itself (`cp -rL`)"
"""The hint for a link that is not followed."""
_BLOB = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")

DEPTH = 48
"""Nested objects and lists of a JSON text. Configs have about 4."""


def is_plain_name(name: str) -> bool:
    """Whether it is the name of a file in a folder, and leads nowhere else."""
    return name not in ("", ".", "..") and "/" not in name and "\0" not in name


def open_regular(path: Path, hint: str, *, links: bool = True) -> BinaryIO:
    """Open a regular file to read. links: whether it may be reached by any symbolic link.

    A link of the Hub's cache may always be followed. Raises FileNotFoundError if it is missing, and
    UserError for anything but a regular file.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if links else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path if links else blob_of(path) or path, flags)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UserError(f"{path} is a symbolic link", BY_ITSELF) from None
        if error.errno in (errno.ENXIO, errno.ENODEV):
            raise UserError(f"{path} is not a regular file", hint) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UserError(f"{path} is not a regular file", hint)
    return os.fdopen(descriptor, "rb")


def blob_of(link: Path) -> Path | None:
    """The file that a link of the Hub's cache leads to; None for other links and for files.

    The cache of a repository has `snapshots/REVISION/.../NAME`, a link to `blobs/HASH`.
    """
    if not link.is_symlink():
        return None
    folder = link.parent.resolve()
    target = Path(os.path.normpath(folder / link.readlink()))
    snapshots = [one for one in folder.parents if one.name == "snapshots"]
    of_repository = any(target.parent == one.with_name("blobs") for one in snapshots)
    whole = of_repository and _BLOB.fullmatch(target.name) and not target.is_symlink()
    return target if whole else None


def read_bytes(path: Path, most: int, hint: str, *, links: bool = True) -> bytes:
    """A whole file of at most `most` bytes. Raises as `open_regular`."""
    with open_regular(path, hint, links=links) as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(most + 1) if size <= most else b""
    if max(size, len(content)) > most:
        raise UserError(
            f"{path} has {max(size, len(content))} bytes, at most {most} are read", hint
        )
    return content


def read_text(path: Path, most: int, hint: str, *, links: bool = True) -> str:
    """A whole text in UTF-8. Raises as `open_regular`."""
    return decode_utf8(read_bytes(path, most, hint, links=links), path, hint)


def read_object(
    path: Path, most: int, hint: str, *, links: bool = True, lenient: bool = False
) -> dict[str, Any]:
    """The JSON object that a file holds. Raises as `open_regular`."""
    return parse_object(read_bytes(path, most, hint, links=links), path, hint, lenient=lenient)


def parse_object(raw: bytes, name: object, hint: str, *, lenient: bool = False) -> dict[str, Any]:
    """A JSON object without repeated keys, lone surrogates or deep nesting.

    name: of the text, for messages. lenient: it may have NaN, infinities, repeated keys, the last
    of which counts, and a byte order mark, as checkpoints' files do: the reader of a number judges
    it. Raises UserError.
    """
    strict: dict[str, Any] = {"parse_constant": _refuse_constant, "parse_float": _finite}
    strict["object_pairs_hook"] = _without_duplicates
    raw = raw.removeprefix(codecs.BOM_UTF8) if lenient else raw
    try:
        value = json.loads(decode_utf8(raw, name, hint), **({} if lenient else strict))
    except RecursionError:
        raise UserError(f"{name} is nested too deeply", hint) from None
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"{name} is not JSON: {first_line(error)}", hint) from None
    if not isinstance(value, dict):
        raise UserError(f"{name} does not hold a JSON object", hint)
    _require_shallow(value, name, hint)
    _require_unicode(raw, value, name, hint)
    return value


def decode_utf8(raw: bytes, name: object, hint: str) -> str:
    """A text in UTF-8. Raises UserError with the name."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{name} is not UTF-8: {error.reason} at byte {error.start}", hint
        ) from None


def repeated_keys(raw: bytes) -> list[str]:
    """The keys that occur twice in an object of a JSON text that can be read."""
    found: list[str] = []

    def collect(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found.extend(_note_repeated(pairs))
        return dict(pairs)

    json.loads(raw.removeprefix(codecs.BOM_UTF8), object_pairs_hook=collect)
    return found


def _note_repeated(pairs: list[tuple[str, Any]]) -> list[str]:
    if len(dict(pairs)) == len(pairs):
        return []
    return [name[:100] for name, count in Counter(name for name, _ in pairs).items() if count > 1]


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if twice := _note_repeated(pairs):
        raise ValueError(f"the key {twice[0]!r} occurs twice in an object")
    return dict(pairs)


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is too large for a number")
    return number


def _require_shallow(value: Any, name: object, hint: str) -> None:
    level = [value]
    for _ in range(DEPTH):
        children = (
            child
            for parent in level
            for child in (parent.values() if isinstance(parent, dict) else parent)
        )
        level = [child for child in children if isinstance(child, dict | list)]
        if not level:
            return
    raise UserError(f"{name} is nested too deeply", hint)


def _require_unicode(raw: bytes, value: Any, name: object, hint: str) -> None:
    """Half of a surrogate pair can be escaped in JSON, and is not text."""
    if b"\\ud" not in raw.lower():
        return
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise UserError(f"{name} has half of a character: a lone surrogate", hint) from None
