"""Receives TensorRT's messages and progress: its logger, and a monitor that can stop a build."""

from collections.abc import Callable
from pathlib import Path
from threading import Event, Lock

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


class Monitor(trt.IProgressMonitor):
    """Tells each phase of a build and its steps. TensorRT calls it from several threads.

    Once cancelled, the build ends at its next step. An exception in here would mean that too.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        trt.IProgressMonitor.__init__(self)
        self._tell = tell
        self._steps: dict[str, int] = {}
        self._cancelled = Event()

    def cancel(self) -> None:
        """Stop the build that is under way, or the next."""
        self._cancelled.set()

    def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
        """A phase begins; others may be under way around it."""
        self._steps[phase_name] = num_steps
        self._tell(phase_name)

    def step_complete(self, phase_name: str, step: int) -> bool:
        """Step `step` (from 0) is done; whether to go on."""
        self._tell(f"{phase_name}: {step + 1} of {self._steps.get(phase_name, '?')}")
        return not self._cancelled.is_set()

    def phase_finish(self, phase_name: str) -> None:
        """A phase is done, or given up."""
        self._steps.pop(phase_name, None)
