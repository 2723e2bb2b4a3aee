"""TensorRT's messages: all but the most verbose in a file, the errors at hand too."""

from pathlib import Path
from threading import Lock

import tensorrt as trt

from snapexport.contract.errors import UserError


class Log(trt.ILogger):
    """Has to outlive every object of TensorRT that was made with it. Threads may share it."""

    def __init__(self, path: Path) -> None:
        trt.ILogger.__init__(self)
        self.path = path
        self._file = path.open("w")
        self._lock = Lock()
        self._errors: list[str] = []

    def close(self) -> None:
        """End the file. (ILogger has a `with` block of its own, which is deprecated.)"""
        with self._lock:
            self._file.close()

    def log(self, severity: trt.ILogger.Severity, msg: str) -> None:
        """Called by TensorRT; what it says after the end is dropped."""
        if severity == trt.ILogger.VERBOSE:
            return
        with self._lock:
            if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR):
                self._errors.append(msg)
            if not self._file.closed:
                print(f"{severity.name}: {msg}", file=self._file, flush=True)

    def forget(self) -> None:
        """Something new begins: earlier errors are not its fault."""
        with self._lock:
            self._errors.clear()

    def failure(self, what: str, hint: str) -> UserError:
        """An error of `what` was tried, with the last that TensorRT said."""
        with self._lock:
            said = list(self._errors)
        why = said[-1].strip().splitlines()[0] if said else "TensorRT does not say why"
        more = f" (after {_count(len(said) - 1)})" if len(said) > 1 else ""
        return UserError(f"{what}: {why}{more}", f"{hint}; all of TensorRT's words: {self.path}")


def _count(errors: int) -> str:
    return f"{errors} other error{'s' if errors > 1 else ''}"
