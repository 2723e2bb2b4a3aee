"""Exchanges tensors and calls between processes of one machine, through the first rank.

Each other rank has a pair of connected sockets with the first one: no address is listened on. A
rank that ends closes its socket, which ends the ranks that wait for it. One that hangs ends them
after `SILENT_SECONDS`: all ranks do the same work between two tensors. Only the first rank adds up,
in the order of the ranks, so all ranks have the same bits.
"""

import pickle
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapexport.runtime.engine.backend import DeviceError

_HEADER = struct.Struct("<cQ")
TENSOR, CALL, READY, FAILED = b"T", b"C", b"R", b"F"

SILENT_SECONDS = 300.0
"""Longest wait for a rank within a call. Between calls, and until it is loaded, it has no limit."""


class Link:
    """A connection of two ranks. Raises DeviceError where the other one ended, failed or hangs."""

    def __init__(self, connection: socket.socket, other: int) -> None:
        """other: the rank at its other end."""
        self._socket, self._other = connection, other

    def send(self, kind: bytes, data: bytes | memoryview) -> None:
        """Send one message."""
        self._socket.settimeout(SILENT_SECONDS)
        try:
            self._socket.sendall(_HEADER.pack(kind, len(data)))
            self._socket.sendall(data)
        except TimeoutError:
            raise self._silent("taken") from None
        except OSError as error:
            raise self._reason() from error

    def send_array(self, array: NDArray[Any]) -> None:
        """Send a contiguous array's bytes."""
        self.send(TENSOR, _bytes_of(array))

    def receive_array(self, array: NDArray[Any]) -> None:
        """Receive an array's bytes in its place."""
        nbytes = self._begin(TENSOR)
        if nbytes != array.nbytes:
            raise DeviceError(f"rank {self._other} is at another tensor: the ranks don't agree")
        self._fill(_bytes_of(array))

    def receive(self, kind: bytes) -> bytes:
        """Receive one message of that kind."""
        data = bytearray(self._begin(kind))
        self._fill(memoryview(data))
        return bytes(data)

    def close(self) -> None:
        """End the connection: the other side sees it at once."""
        self._socket.close()

    def _begin(self, kind: bytes) -> int:
        self._socket.settimeout(SILENT_SECONDS if kind == TENSOR else None)
        header = bytearray(_HEADER.size)
        self._fill(memoryview(header))
        found, nbytes = _HEADER.unpack(header)
        if found == FAILED:
            raise DeviceError(f"rank {self._other}: {self._text(nbytes)}")
        if found != kind:
            raise DeviceError(f"rank {self._other} is at another call: the ranks don't agree")
        return int(nbytes)

    def _reason(self) -> DeviceError:
        """Why nothing can be sent: what the other side said before it ended, if it did."""
        try:
            self._begin(FAILED)
        except DeviceError as error:
            return error
        return DeviceError(f"rank {self._other} ended")

    def _silent(self, done: str) -> DeviceError:
        return DeviceError(f"rank {self._other} has {done} nothing for {SILENT_SECONDS:g} seconds")

    def _text(self, nbytes: int) -> str:
        text = bytearray(nbytes)
        self._fill(memoryview(text))
        return text.decode(errors="replace")

    def _fill(self, view: memoryview) -> None:
        while view:
            try:
                count = self._socket.recv_into(view)
            except TimeoutError:
                raise self._silent("sent") from None
            except OSError:
                count = 0
            if not count:
                raise DeviceError(f"rank {self._other} ended")
            view = view[count:]


def _bytes_of(array: NDArray[Any]) -> memoryview:
    assert array.flags.c_contiguous
    return array.reshape(-1).view(np.uint8).data


class First:
    """The first rank's side: it sums up and hands out. Implements `Collectives`."""

    rank = 0

    def __init__(self, links: Sequence[Link]) -> None:
        """links: to the other ranks, in their order."""
        self.links, self.ranks = links, len(links) + 1

    def all_reduce(self, part: NDArray[Any]) -> None:
        """Add the others' parts one by one, in fp32."""
        total, other = part.astype(np.float32), np.empty_like(part)
        for link in self.links:
            link.receive_array(other)
            total += other
        part[...] = total
        for link in self.links:
            link.send_array(part)

    def all_gather(self, part: NDArray[Any], parts: NDArray[Any]) -> None:
        """Collect the others' parts, then send all to all."""
        each = parts.reshape(self.ranks, -1)
        each[0] = part.reshape(-1)
        for link, own in zip(self.links, each[1:], strict=True):
            link.receive_array(own)
        for link in self.links:
            link.send_array(parts)

    def all_to_all(self, parts: NDArray[Any]) -> None:
        """Collect all ranks' rows, then send each the rows that are for it."""
        given = np.empty((self.ranks, self.ranks, parts.size // self.ranks), parts.dtype)
        given[0] = parts.reshape(self.ranks, -1)
        for link, theirs in zip(self.links, given[1:], strict=True):
            link.receive_array(theirs)
        for rank, link in enumerate(self.links, start=1):
            link.send_array(np.ascontiguousarray(given[:, rank]))
        parts[...] = given[:, 0].reshape(parts.shape)

    def hand(self, source: int, target: int, array: NDArray[Any]) -> None:
        """Through this rank, whatever the two are."""
        passing = array if 0 in (source, target) else np.empty_like(array)
        if source:
            self.links[source - 1].receive_array(passing)
        if target:
            self.links[target - 1].send_array(passing)

    def call(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Make the others do what this rank does now."""
        data = pickle.dumps((name, args, kwargs))
        for link in self.links:
            link.send(CALL, data)


class Other:
    """Another rank's side. Implements `Collectives`."""

    def __init__(self, link: Link, rank: int, ranks: int) -> None:
        """link: to the first rank."""
        self.link, self.rank, self.ranks = link, rank, ranks

    def all_reduce(self, part: NDArray[Any]) -> None:
        """Send the part, and receive the sum."""
        self.link.send_array(part)
        self.link.receive_array(part)

    def all_gather(self, part: NDArray[Any], parts: NDArray[Any]) -> None:
        """Send the part, and receive all of them."""
        self.link.send_array(part)
        self.link.receive_array(parts)

    def all_to_all(self, parts: NDArray[Any]) -> None:
        """Send rows for all ranks, and receive those of all ranks."""
        self.link.send_array(parts)
        self.link.receive_array(parts)

    def hand(self, source: int, target: int, array: NDArray[Any]) -> None:
        """To or from the first rank, which passes it on."""
        if self.rank == source:
            self.link.send_array(array)
        elif self.rank == target:
            self.link.receive_array(array)

    def next_call(self) -> tuple[str, Sequence[Any], Mapping[str, Any]]:
        """The next call of the first rank, which is this process's parent: its pickles are ours."""
        name, args, kwargs = pickle.loads(self.link.receive(CALL))
        return name, args, kwargs
