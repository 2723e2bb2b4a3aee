"""A process of one rank: does what the first rank tells, until that one ends.

    python -m snapexport.runtime.ranks.follower SOCKET BUILD RANK OPTIONS

Started by leader.py alone. An error is told to the first rank, and ends this one.
"""

import json
import socket
import sys
from contextlib import suppress
from pathlib import Path

from snapexport.contract.build_directory import Build
from snapexport.runtime.engine.backend import DeviceError
from snapexport.runtime.ranks.leader import open_rank
from snapexport.runtime.ranks.sockets import FAILED, READY, Link, Other


def main() -> None:
    """Open the rank's part of the build, then follow."""
    file, directory, rank, how = sys.argv[1:]
    link = Link(socket.socket(fileno=int(file)), 0)
    try:
        build = Build.open(Path(directory))
        side = Other(link, int(rank), build.manifest.tensor_parallel)
        executor = open_rank(build, side, **json.loads(how))
        link.send(READY, b"")
    except Exception as error:
        _tell(link, error)
        return
    while True:
        try:
            name, arguments = side.next_call()
        except DeviceError:  # the first rank ended, or closed the build
            return
        try:
            getattr(executor, name)(*arguments)
        except Exception as error:
            _tell(link, error)
            return


def _tell(link: Link, error: Exception) -> None:
    with suppress(DeviceError):  # nobody may be left
        link.send(FAILED, f"{type(error).__name__}: {error}".encode())


if __name__ == "__main__":
    main()
