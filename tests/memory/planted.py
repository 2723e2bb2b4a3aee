"""`snapexport` with a leak: each request leaves 4 MiB.

PLANTED=unwatched: nobody watches the memory either.
"""

import os
import sys
from typing import Any

from snapexport.cli.app import main
from snapexport.serving import streams
from snapexport.serving.memory import watch

LEFT: list[bytearray] = []
_open = streams.Streams.open


def leaking(self: streams.Streams, request: Any) -> streams.Stream:
    LEFT.append(bytearray(b"x" * (4 << 20)))
    return _open(self, request)


streams.Streams.open = leaking  # type: ignore[method-assign]
if os.environ.get("PLANTED") == "unwatched":
    watch.Watch.look = lambda self: None  # type: ignore[method-assign]
    watch.Watch.admits = lambda self: True  # type: ignore[method-assign]

if __name__ == "__main__":
    sys.exit(main())
