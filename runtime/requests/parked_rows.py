"""Keeps the rows of the latest prompts, for prompts that begin with one of them.

A turn of a conversation begins with the turns before it, and then costs only its own tokens.
What a row keeps was voted for by its own prompt: an answer on a parked row may differ from one on
a fresh prefill.

Rows are kept in memory, and in files where a folder is given: conversations then outlive the
process. A folder for each build, by its digest, has a file for each row: an .npz of NumPy's, with
the prompt's tokens, its session and the states. A thread writes them, so that no step waits for a
disk.
"""

import hashlib
import os
import warnings
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from snapexport.contract.manifest import TensorSpec
from snapexport.errors import UserError
from snapexport.files.whole import whole_file
from snapexport.runtime.engine.rows import Row, host_buffer

Key = tuple[str, tuple[int, ...]]
"""A session, and the tokens of a prompt."""


@dataclass(frozen=True, slots=True, eq=False)
class ParkedRow:
    """A prompt and its row on the host, for prompts that begin with it.

    row: before any decode step. session: whose requests may go on from it.
    """

    token_ids: tuple[int, ...]
    row: Row
    session: str = ""

    @property
    def key(self) -> Key:
        """Its key among parked rows."""
        return self.session, self.token_ids


def begins(key: Key, other: Key) -> bool:
    """Whether a prompt is the other's beginning, or the same, in one session."""
    (session, tokens), (others, longer) = key, other
    return session == others and longer[: len(tokens)] == tokens


DEFAULT_BYTES = 16 << 30

_SUFFIX = ".row.npz"
_TOKENS = "token_ids"
_SESSION = "session"
_DIGITS = 32
_DAMAGED = (OSError, ValueError, KeyError, EOFError, BadZipFile)


class RowFiles:
    """The rows of one build in a folder. Not thread-safe."""

    def __init__(
        self, folder: Path, digest: str, states: Iterable[TensorSpec], most_bytes: int
    ) -> None:
        """digest: the build's. states: what a row consists of. Raises UserError.

        most_bytes: of all files; the one that was used longest ago goes first.
        """
        self._digest = digest
        self._folder = folder / digest[:_DIGITS]
        self._specs = {spec.name: spec for spec in states}
        self._most_bytes = most_bytes
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            paths = sorted(self._folder.glob(f"*{_SUFFIX}"), key=_last_use)
        except OSError as error:
            raise UserError(
                f"{folder} cannot hold parked rows: {error.strerror}", "name another folder"
            ) from None
        read = ((_key_in(path), path) for path in paths)
        self._paths = {key: path for key, path in read if key}
        self._pending: dict[Key, ParkedRow] = {}
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="parked rows")

    def keep(self, row: ParkedRow) -> None:
        """Write a row, in the place of those that it began with."""
        for held in [key for key in self._paths if begins(key, row.key)]:
            self._writer.submit(self._paths.pop(held).unlink, missing_ok=True)
        named = np.array(row.token_ids, np.int64).tobytes() + row.session.encode(
            errors="surrogatepass"
        )
        path = self._folder / f"{hashlib.sha256(named).hexdigest()[:_DIGITS]}{_SUFFIX}"
        self._paths[row.key] = path
        self._pending[row.key] = row
        self._writer.submit(self._write, row, path)

    def longest(self, prompt: Sequence[int], beyond: int, session: str = "") -> ParkedRow | None:
        """The session's row of most tokens that the prompt begins with: more than `beyond`, and not
        all."""
        key = session, tuple(prompt)
        found = [
            held
            for held in self._paths
            if beyond < len(held[1]) < len(key[1]) and begins(held, key)
        ]
        for held in sorted(found, key=lambda held: len(held[1]), reverse=True):
            if row := self._pending.get(held) or self._read(held):
                return row
        return None

    def close(self) -> None:
        """Wait until all rows are written."""
        self._writer.shutdown()

    def _read(self, key: Key) -> ParkedRow | None:
        """The row of a file; None, and it is forgotten, if that is damaged or gone."""
        path = self._paths[key]
        try:
            with np.load(path, allow_pickle=False) as file:
                states = {name: file[name] for name in self._specs}
            os.utime(path)
        except _DAMAGED:
            del self._paths[key]
            return None
        if not all(_fits(states[name], spec) for name, spec in self._specs.items()):
            del self._paths[key]
            return None
        session, tokens = key
        buffers = tuple(host_buffer(spec, states[name]) for name, spec in self._specs.items())
        return ParkedRow(
            tokens, Row(self._digest, "cpu", buffers, len(tokens), len(tokens)), session
        )

    def _write(self, row: ParkedRow, path: Path) -> None:
        try:
            with whole_file(path) as partial, partial.open("wb") as file:
                os.fchmod(file.fileno(), 0o600)
                arrays: Mapping[str, NDArray[Any]] = {
                    _TOKENS: np.array(row.token_ids, np.int64),
                    _SESSION: np.array(row.session),
                    **{part.name: part.host for part in row.row.buffers},
                }
                np.savez(file, **arrays)  # type: ignore[arg-type]
            self._shrink()
        except OSError as error:
            warnings.warn(f"{path} was not written: {error.strerror}", stacklevel=1)
        finally:
            self._pending.pop(row.key, None)

    def _shrink(self) -> None:
        """Remove the files that were used longest ago. Readers find out when they open them."""
        paths = sorted(self._folder.glob(f"*{_SUFFIX}"), key=_last_use)
        total = sum(path.stat().st_size for path in paths)
        for path in paths:
            if total <= self._most_bytes:
                return
            total -= path.stat().st_size
            path.unlink(missing_ok=True)


def _last_use(path: Path) -> float:
    return path.stat().st_mtime


def _key_in(path: Path) -> Key | None:
    """The session and the prompt of a file; None if it is damaged."""
    try:
        with np.load(path, allow_pickle=False) as file:
            found, session = file[_TOKENS], file[_SESSION]
    except _DAMAGED:
        return None
    if found.ndim != 1 or found.dtype != np.int64 or not len(found):
        return None
    return (str(session), tuple(found.tolist())) if session.dtype.kind == "U" else None


def _fits(array: NDArray[Any], spec: TensorSpec) -> bool:
    return array.shape == tuple(spec.shape) and array.nbytes == host_buffer(spec, array).nbytes


class ParkedRows:
    """Up to `most` rows in memory; the one that was used longest ago goes first.

    files: where all rows are written as well, and those that memory lacks are found.
    """

    def __init__(self, most: int, files: RowFiles | None = None) -> None:
        self._most, self._files = most, files
        self._rows: OrderedDict[Key, ParkedRow] = OrderedDict()

    def find(self, prompt: Sequence[int], least: int = 1, session: str = "") -> ParkedRow | None:
        """The session's row of the longest prompt that begins this one, and is shorter.

        least: tokens that it has to have.
        """
        tokens = tuple(prompt)
        found = [
            held for held in self._begin((session, tokens)) if least <= len(held[1]) < len(tokens)
        ]
        longest = max(found, key=_length, default=(session, ()))
        beyond = max(_length(longest), least - 1)
        if self._files and (row := self._files.longest(tokens, beyond, session)):
            self._hold(row)
            return row
        if longest not in self._rows:
            return None
        self._rows.move_to_end(longest)
        return self._rows[longest]

    def keep(self, row: ParkedRow) -> None:
        """Add a row; it replaces those of the turns before it."""
        self._hold(row)
        if self._files:
            self._files.keep(row)

    def _hold(self, row: ParkedRow) -> None:
        for held in self._begin(row.key):
            del self._rows[held]
        self._rows[row.key] = row
        while len(self._rows) > self._most:
            self._rows.popitem(last=False)

    def _begin(self, key: Key) -> list[Key]:
        """The rows of the same session whose prompts begin one, or equal it."""
        return [held for held in self._rows if begins(held, key)]

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return sum(row.row.nbytes for row in self._rows.values())

    def close(self) -> None:
        """Wait until all rows are written to their files."""
        if self._files:
            self._files.close()


def _length(key: Key) -> int:
    return len(key[1])
