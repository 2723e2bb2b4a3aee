"""Starts a process for every rank but the first, and opens the first one's executor here.

Under mpiexec all processes are there already: this one is the first rank, or follows it.

    python -m snapexport.runtime.ranks.processes SOCKET BUILD RANK OPTIONS

is the process of another rank, which does what the first one does until that one ends. It passes an
error to the first rank, and ends.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

import snapexport.runtime
from snapexport.contract.build_directory import Build
from snapexport.errors import UserError
from snapexport.runtime.engine.backend import Collectives, DeviceError
from snapexport.runtime.engine.bound_graph import load_weights
from snapexport.runtime.engine.graph_set import GraphSet, PrefillForm
from snapexport.runtime.ranks import mpi
from snapexport.runtime.ranks.executor import Pass, RankExecutor
from snapexport.runtime.ranks.sockets import FAILED, READY, First, Link, Other

SECONDS = 5.0
"""How long a rank may take to end by itself."""


def open_ranks(
    build: Build, *, threads: int | None, prepack: bool, prefill: PrefillForm
) -> RankExecutor:
    """The first rank's executor, which the other ranks follow. Raises UserError.

    threads: of each rank; None: the cores, shared equally.
    """
    count = build.manifest.tensor_parallel
    threads = threads or max(1, (os.cpu_count() or 1) // count)
    if mpi.processes() > 1:
        side = mpi.Mpi(count)
        opened = partial(open_rank, build, side, threads=threads, prepack=prepack, prefill=prefill)
        if side.rank:
            mpi.follow(side, opened)
        return opened(pass_on=side.call, end=mpi.Ending(side))
    others = _Others(build.directory, count, threads, prepack, prefill)
    try:
        executor = open_rank(
            build,
            others.collectives,
            threads=threads,
            prepack=prepack,
            prefill=prefill,
            pass_on=others.collectives.call,
            end=others.end,
        )
        others.wait_until_ready()
    except DeviceError as error:
        others.end()
        raise UserError(f"a rank of {build.directory} did not start: {error}", _HINT) from None
    except BaseException:
        others.end()
        raise
    return executor


_HINT = "see what it wrote above, and that all ranks fit into memory"


class _Others:
    """The processes of the other ranks."""

    def __init__(
        self, directory: Path, count: int, threads: int, prepack: bool, prefill: PrefillForm
    ) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []
        links = []
        for rank in range(1, count):
            ours, theirs = socket.socketpair()
            how = {"threads": threads, "prepack": prepack, "prefill": prefill}
            with theirs:
                self._processes.append(_start(theirs, directory, rank, how))
            links.append(Link(ours, rank))
        self.collectives = First(links)

    def wait_until_ready(self) -> None:
        """Raise DeviceError, with the reason, for a rank that could not be opened."""
        for link in self.collectives.links:
            link.receive(READY)

    def end(self) -> None:
        """Close the connections, and each rank ends with its own. A second call does nothing."""
        for link in self.collectives.links:
            link.close()
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(SECONDS)
            process.kill()
            process.wait()


def _start(
    connection: socket.socket, directory: Path, rank: int, how: Mapping[str, object]
) -> "subprocess.Popen[bytes]":
    file = connection.fileno()
    module = "snapexport.runtime.ranks.processes"
    command = [sys.executable, "-P", "-m", module, str(file), str(directory), str(rank)]
    home = str(Path(snapexport.runtime.__file__).parents[2])
    path = os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        [*command, json.dumps(how)],
        pass_fds=[file],
        stdin=subprocess.DEVNULL,
        # Ctrl-C is for the first rank, which ends the others.
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": path},
    )


def open_rank(
    build: Build,
    collectives: Collectives,
    *,
    threads: int,
    prepack: bool,
    prefill: PrefillForm,
    pass_on: Pass | None = None,
    end: Callable[[], None] | None = None,
) -> RankExecutor:
    """One rank's executor. pass_on, end: of the first rank, to those that follow it."""
    from snapexport.runtime.ort.backend import OnnxRuntimeBackend

    own = build.of_rank(collectives.rank)
    graphs = GraphSet.of(own, baseline=False, form=prefill)
    backend = OnnxRuntimeBackend(
        own, graphs, threads=threads, prepack=prepack, collectives=collectives
    )
    weights = load_weights(own, graphs.names, backend.memory)
    return RankExecutor(
        own.manifest, graphs, backend, weights, collectives, pass_on=pass_on, end=end
    )


def main() -> None:
    """Be another rank: open its part of the build, then do what the first one does."""
    file, directory, rank, how = sys.argv[1:]
    link = Link(socket.socket(fileno=int(file)), 0)
    try:
        build = Build.open(Path(directory))
        side = Other(link, int(rank), build.manifest.tensor_parallel)
        executor = open_rank(build, side, **json.loads(how))
        link.send(READY, b"")
    except Exception as error:
        _pass_on(link, error)
        return
    while True:
        try:
            name, args, kwargs = side.next_call()
        except DeviceError:  # the first rank ended, or closed the build
            return
        try:
            getattr(executor, name)(*args, **kwargs)
        except Exception as error:
            _pass_on(link, error)
            return


def _pass_on(link: Link, error: Exception) -> None:
    with suppress(DeviceError):  # nobody may be left
        link.send(FAILED, f"{type(error).__name__}: {error}".encode())


if __name__ == "__main__":
    main()
