"""Ranks as the processes of `mpiexec`: each runs the same program, and the first one leads.

    mpiexec -n 2 snapexport generate BUILD --prompt "..."

The first process goes on with what opened the build. The others follow it from there, and end with
it. Needs mpi4py. A process that fails ends all of them, as MPI does.
"""

import atexit
import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from snapexport.errors import UserError, needs_extra
from snapexport.runtime.ranks.executor import RankExecutor

_SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")
"""Variables in which MPICH and Open MPI say how many processes there are."""

Call = tuple[str, Sequence[Any], Mapping[str, Any]]
"""A method of the executor, and its arguments."""


def processes() -> int:
    """How many processes an MPI launcher has started; 1: none has."""
    found = [os.environ[name] for name in _SIZES if name in os.environ]
    return int(found[0]) if found and found[0].isdecimal() else 1


class Mpi:
    """One process's side. Implements `Collectives`."""

    def __init__(self, ranks: int) -> None:
        """Raise UserError without mpi4py, and for another number of processes."""
        with needs_extra("mpi"):
            mpi: Any = importlib.import_module("mpi4py.MPI")
        self._world = mpi.COMM_WORLD
        self.rank, self.ranks = self._world.Get_rank(), self._world.Get_size()
        if self.ranks != ranks:
            raise UserError(
                f"MPI started {self.ranks} processes, and the build has {ranks} ranks",
                f"mpiexec -n {ranks}",
            )

    def all_reduce(self, part: NDArray[Any]) -> None:
        """Sum up in the first rank, in fp32, and hand out: the same bits in each."""
        own = part.astype(np.float32)
        total = np.empty_like(own)
        self._world.Reduce(own, total, root=0)
        self._world.Bcast(total, root=0)
        part[...] = total

    def all_gather(self, part: NDArray[Any], parts: NDArray[Any]) -> None:
        """Gather bytes: MPI does not know all types."""
        self._world.Allgather(_bytes_of(part), _bytes_of(parts))

    def all_to_all(self, parts: NDArray[Any]) -> None:
        """Exchange bytes, in place."""
        given = parts.copy()
        self._world.Alltoall(_bytes_of(given), _bytes_of(parts))

    def hand(self, source: int, target: int, array: NDArray[Any]) -> None:
        """From one to the other; the rest go on."""
        if self.rank == source:
            self._world.Send(_bytes_of(array), dest=target)
        elif self.rank == target:
            self._world.Recv(_bytes_of(array), source=source)

    def call(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Make the others do what this rank does now."""
        self._world.bcast((name, args, kwargs), root=0)

    def next_call(self) -> Call | None:
        """The next call of the first rank; None: it ends."""
        call: Call | None = self._world.bcast(None, root=0)
        return call

    def end(self) -> None:
        """Let the others end."""
        self._world.bcast(None, root=0)

    def abort(self, error: BaseException) -> NoReturn:
        """End all processes: some wait for this one."""
        print(f"rank {self.rank}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        self._world.Abort(1)
        raise SystemExit(1)


def _bytes_of(array: NDArray[Any]) -> NDArray[np.uint8]:
    return array.reshape(-1).view(np.uint8)


class Ending:
    """Ends the other processes once: with the executor, or with the program."""

    def __init__(self, side: Mpi) -> None:
        self._side, self._is_over = side, False
        atexit.register(self)  # before MPI's own end, which waits for all

    def __call__(self) -> None:
        error = sys.exception()
        if not self._is_over:
            self._is_over = True
            if error is None:
                self._side.end()
            else:
                self._side.abort(error)


def follow(side: Mpi, opened: Callable[[], RankExecutor]) -> NoReturn:
    """Do what the first rank does, then end this process."""
    try:
        executor = opened()
        while call := side.next_call():
            name, args, kwargs = call
            getattr(executor, name)(*args, **kwargs)
    except BaseException as error:
        side.abort(error)
    raise SystemExit(0)
