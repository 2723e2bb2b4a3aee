"""Starts the program: an interrupt ends it quietly, even while its modules are loaded.

`python -m snapexport` is `snapexport`.
"""

import atexit
import os
import signal
import sys
from contextlib import suppress

from snapexport.cli.signals import EndedBySignal, end_on_signals


def main() -> int:
    """Run `snapexport`; the exit status."""
    end_on_signals()
    signals: list[EndedBySignal] = []
    # What is registered first runs last: the clean-up of every library comes before it.
    atexit.register(_end_at_once, signals)
    try:
        from snapexport.cli import app

        return app.main()
    except EndedBySignal as end:
        signals.append(end)
        if end.status == 128 + signal.SIGINT:
            with suppress(OSError, ValueError):
                print("interrupted", file=sys.stderr)
        raise


def _end_at_once(signals: list[EndedBySignal]) -> None:
    """After a signal, leave before Python frees its modules: native threads may still use them."""
    if signals:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(signals[0].status)


if __name__ == "__main__":
    sys.exit(main())
