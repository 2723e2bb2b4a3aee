"""Describes a prompt in a batch slot, so that another executor of the same build can go on with it.

Disaggregation: one process prefills and compresses, another decodes. What moves is a batch slot's
row of every cache. Knows no request and no transport.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from snapexport.contract.manifest import Manifest
from snapexport.errors import UserError
from snapexport.runtime.engine.backend import Buffer

Role = Literal["both", "prefill", "decode"]
"""What an executor loads: prefill and compress graphs, decode graphs, or all of them."""

Place = Literal["cpu", "cuda"]

SAME_BUILD = "serve the same build directory in every worker"


@dataclass(frozen=True, slots=True)
class Row:
    """One prompt's caches, and where decode goes on.

    digest: of the build (`digest_of`). place: the kind of memory of the buffers. buffers: [1, ...]
    each, in the order of decode's inputs. They are the executor's own memory, or a copy of it.
    next_position: of the next token that decode takes. It is prompt_length after prefill.
    """

    digest: str
    place: Place
    buffers: tuple[Buffer, ...]
    prompt_length: int
    next_position: int

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return sum(one.nbytes for one in self.buffers)


@dataclass(frozen=True, slots=True)
class Prefilled:
    """A prompt that another executor prefilled, and the first token, which was chosen there."""

    row: Row
    first_token: int


def digest_of(manifest: Manifest) -> str:
    """SHA-256 of everything that the manifest says of a build but its engines.

    Engines are compiled for one machine, and prefill's machine may be another one than decode's.
    """
    return hashlib.sha256(manifest.model_dump_json(exclude={"engines"}).encode()).hexdigest()


def place_of(buffers: Sequence[Buffer]) -> Place:
    """Where caches lie: those of a GPU have no host's side."""
    return "cpu" if all(one.array is not None for one in buffers) else "cuda"


def require_adoptable(row: Row, digest: str, own: Sequence[Buffer], positions: int) -> None:
    """Raise UserError for a row that does not fit a batch slot. own: the slot's buffers."""
    if row.digest != digest:
        raise UserError(
            f"the prompt was prefilled by another build: its manifest's digest is "
            f"{row.digest:.12}, this one's is {digest:.12}",
            SAME_BUILD,
        )
    if row.place != (place := place_of(own)):
        raise UserError(
            f"the prompt's caches lie in memory of {row.place}, this build's in that of {place}",
            "run prefill and decode on devices of one kind",
        )
    _require_same(row.buffers, own)
    if not 0 < row.prompt_length <= row.next_position <= positions:
        raise UserError(
            f"a prompt of {row.prompt_length} tokens can't go on at position {row.next_position}: "
            f"this build has {positions} positions",
            SAME_BUILD,
        )


def _require_same(given: Sequence[Buffer], own: Sequence[Buffer]) -> None:
    if len(given) != len(own):
        raise UserError(f"the prompt has {len(given)} caches, this build {len(own)}", SAME_BUILD)
    for one, mine in zip(given, own, strict=True):
        found, expected = _described(one), _described(mine)
        if found != expected:
            raise UserError(
                f"the prompt's cache is {found}, this build's is {expected}", SAME_BUILD
            )
        if one.array is not None and one.array.nbytes != mine.nbytes:
            raise UserError(
                f"{one.name} has {one.array.nbytes} of {mine.nbytes} bytes", "send the row again"
            )


def _described(one: Buffer) -> str:
    return f"{one.name} {one.dtype} {list(one.shape)}"
