"""Holds a row for each batch slot: its part of every cache, and which prompt that is of.

    view        what a batch slot holds, without a copy
    copy_out    the same in the host's memory
    copy_in     a row into an idle batch slot, to be decoded from then on

Handing a prompt to another process, parking it for the next turn and compressing an output again
are uses of these. Knows no request and no transport.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from snapexport.contract import names
from snapexport.contract.graph_kinds import graph_of
from snapexport.contract.manifest import GraphEntry, Manifest, TensorSpec
from snapexport.errors import UserError
from snapexport.runtime.engine.backend import Buffer, Integers, Memory
from snapexport.runtime.engine.followers import SlotFollower, Step

Device = Literal["cpu", "cuda"]

SAME_BUILD = "serve the same build directory in every worker"


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One prompt's caches, and where decode goes on.

    digest: of the build (`digest_of`).
    device: the kind of memory of the buffers.
    buffers: [1, ...] each, in the order of decode's inputs: an executor's own memory, or a copy. A
    parked row's have the position of each cache slot, too.
    next_position: of the next token that decode takes. It is prompt_length after prefill.
    """

    digest: str
    device: Device
    buffers: tuple[Buffer, ...]
    prompt_length: int
    next_position: int

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return sum(buffer.nbytes for buffer in self.buffers)


class Rows(SlotFollower):
    """The rows of all batch slots, in decode's caches."""

    def __init__(
        self,
        memory: Memory,
        caches: Sequence[Sequence[Buffer]],
        decode_batches: Sequence[int],
        digest: str,
        positions: int,
    ) -> None:
        """caches: of each batch slot. decode_batches, positions: as in `Limits`."""
        self._memory, self._caches, self._digest = memory, caches, digest
        self._decode_batches, self._positions = decode_batches, positions
        self.held = np.zeros((2, len(caches)), np.int64)
        """Prompt length and next position of what each batch slot holds; 0: it is idle."""
        self.followers: Sequence[SlotFollower] = ()
        """Of what else a batch slot has, besides its caches."""

    def buffers(self, slot: int) -> tuple[Buffer, ...]:
        """The batch slot's part of every cache: addresses that never change."""
        return tuple(self._caches[slot])

    def new(self) -> tuple[Buffer, ...]:
        """Allocate buffers like a batch slot's, to receive a row in before `copy_in`."""
        return tuple(
            self._memory.allocate(TensorSpec(name=own.name, dtype=own.dtype, shape=[*own.shape]))
            for own in self._caches[0]
        )

    def view(self, slot: int) -> Row:
        """The batch slot's row, valid while it stays there.

        Raises UserError for an idle batch slot, and for one whose caches are not all of its state.
        """
        prompt_length, position = map(int, self.held[:, slot])
        if not prompt_length:
            raise UserError(f"batch slot {slot} holds no prompt", "prefill one into it first")
        for follower in self.followers:
            follower.require_in_caches(slot, position - prompt_length)
        row = self.buffers(slot)
        self._memory.synchronize()  # others read it past this executor's stream
        return Row(self._digest, device_of(row), row, prompt_length, position)

    def copy_out(self, slot: int, beside: Mapping[str, NDArray[Any]]) -> Row:
        """A copy on the host. beside: arrays that belong to it, by name. Raises like `view`."""
        row = self.view(slot)
        copies = [host_buffer(own, self._memory.read(own)) for own in row.buffers]
        copies += [host_buffer(_spec_of(name, array), array) for name, array in beside.items()]
        return Row(self._digest, "cpu", tuple(copies), row.prompt_length, row.next_position)

    def copy_in(self, slot: int, row: Row) -> None:
        """Copy another executor's row into an idle batch slot.

        Raises UserError for a row that does not fit and for a batch slot in use; nothing is changed
        then.
        """
        self.require_fits(row)
        if self.held[0, slot]:
            raise UserError(f"batch slot {slot} is in use", "take another one, or release it first")
        for target, source in zip(self._caches[slot], row.buffers, strict=True):
            self._memory.copy(target, source)
        self._memory.synchronize()  # the source may be written again from now on
        self.held[:, slot] = row.prompt_length, row.next_position
        for follower in self.followers:
            follower.fill(slot, row.prompt_length)
            follower.begin(slot, row.next_position)

    def require_fits(self, row: Row) -> None:
        """Raise UserError for a row of another build, or with missing bytes. Changes nothing."""
        own = self.buffers(0)
        if row.digest != self._digest:
            raise UserError(
                f"the prompt was prefilled by another build: its manifest's digest is "
                f"{row.digest:.12}, this one's is {self._digest:.12}",
                SAME_BUILD,
            )
        if row.device != (device := device_of(own)):
            raise UserError(
                f"the prompt's caches are in memory of {row.device}, this build's in that of "
                f"{device}",
                "run prefill and decode on devices of one kind",
            )
        _require_same(row.buffers, own)
        if not 0 < row.prompt_length <= row.next_position <= self._positions:
            raise UserError(
                f"a prompt of {row.prompt_length} tokens can't go on at position "
                f"{row.next_position}: this build has {self._positions} positions",
                SAME_BUILD,
            )

    def fill(self, slot: int, prompt_length: int) -> None:
        self.held[:, slot] = prompt_length

    def decoded(self, step: Step) -> None:
        """Batch slots that the step ran beside those in use are idle."""
        count = len(step.prompt_length)
        size = next(size for size in self._decode_batches if size >= count)
        self.held[:, :size] = 0
        self.held[0, :count] = step.prompt_length
        self.held[1, :count] = step.position_ids + 1

    def accept(self, slot: int, count: int) -> None:
        self.held[1, slot] += count - 1

    def move(self, source: int, target: int) -> None:
        """Copy a batch slot's caches over another's. The source is idle from then on."""
        self.copy_caches(source, target)
        self.held[:, target] = self.held[:, source]
        self.release(source)

    def copy_caches(self, source: int, target: int) -> None:
        """Copy the caches, and nothing that is known of them."""
        for over, own in zip(self._caches[target], self._caches[source], strict=True):
            self._memory.copy(over, own)

    def clear(self, slot: int) -> None:
        """Zero the batch slot's caches: a prompt may have left NaN there."""
        for own in self._caches[slot]:
            self._memory.zero(own)
        self.release(slot)

    def release(self, slot: int) -> None:
        """Note that a batch slot is idle. Its contents stay until something is written there."""
        self.held[:, slot] = 0


def digest_of(manifest: Manifest) -> str:
    """SHA-256 of everything that the manifest says of a build but its engines.

    Engines are compiled for one machine, and prefill's machine may be another one than decode's.
    """
    return hashlib.sha256(manifest.model_dump_json(exclude={"engines"}).encode()).hexdigest()


def row_states(manifest: Manifest) -> list[TensorSpec]:
    """The states of which a parked row consists, of a build with a graph that extends rows."""
    found = (entry for name, entry in manifest.graphs.items() if graph_of(name).kind.extends_rows)
    return row_inputs(next(found))


def row_inputs(entry: GraphEntry) -> list[TensorSpec]:
    """The inputs of a graph that are part of a row: an output takes the place of each."""
    return [spec for spec in entry.inputs if names.present_of(spec.name) != spec.name]


def device_of(buffers: Sequence[Buffer]) -> Device:
    """The device that has these caches: those of a GPU have no host's side."""
    return "cpu" if all(buffer.array is not None for buffer in buffers) else "cuda"


def host_buffer(spec: Buffer | TensorSpec, array: NDArray[Any]) -> Buffer:
    """An array of the host's memory as the buffer that `spec` describes."""
    return Buffer(spec.name, spec.dtype, tuple(spec.shape), array.ctypes.data, array)


def _spec_of(name: str, array: Integers) -> TensorSpec:
    return TensorSpec(name=name, dtype=str(array.dtype), shape=[*array.shape])


def _require_same(given: Sequence[Buffer], own: Sequence[Buffer]) -> None:
    if len(given) != len(own):
        raise UserError(f"the prompt has {len(given)} caches, this build {len(own)}", SAME_BUILD)
    for theirs, mine in zip(given, own, strict=True):
        found, expected = _describe(theirs), _describe(mine)
        if found != expected:
            raise UserError(
                f"the prompt's cache is {found}, this build's is {expected}", SAME_BUILD
            )
        if theirs.array is not None and theirs.array.nbytes != mine.nbytes:
            raise UserError(
                f"{theirs.name} has {theirs.array.nbytes} of {mine.nbytes} bytes",
                "send the row again",
            )


def _describe(buffer: Buffer) -> str:
    return f"{buffer.name} {buffer.dtype} {list(buffer.shape)}"
