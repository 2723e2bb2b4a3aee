"""Receives TensorRT's messages and progress: its logger, and a monitor that can stop a build."""

import re
from collections.abc import Callable
from pathlib import Path
from threading import Event, Lock

from snapexport.contract.tensorrt_bindings import trt
from snapexport.errors import UserError

_SCRATCH = re.compile(r"Total Activation Memory: (\d+) bytes")


class Log(trt.ILogger):
    """TensorRT's logger. Must outlive all objects of TensorRT made with it. Thread-safe.

    scratch: bytes of the last built engine's scratch memory and activations, by its builder's log.
    """

    def __init__(self, path: Path) -> None:
        trt.ILogger.__init__(self)
        self.path = path
        self._file = path.open("w")
        self._lock = Lock()
        self._errors: list[str] = []
        self.scratch: int | None = None

    def close(self) -> None:
        """Close the file. (ILogger's own context manager is deprecated.)"""
        with self._lock:
            self._file.close()

    def log(self, severity: trt.ILogger.Severity, msg: str) -> None:
        """Called by TensorRT. Messages after `close` are dropped."""
        if severity == trt.ILogger.VERBOSE:
            return
        with self._lock:
            if found := _SCRATCH.match(msg):
                self.scratch = int(found[1])
            if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR):
                self._errors.append(msg)
            if not self._file.closed:
                print(f"{severity.name}: {msg}", file=self._file, flush=True)

    def forget(self) -> None:
        """Forget earlier errors, before a new stage of the work."""
        with self._lock:
            self._errors.clear()

    def failure(self, what: str, hint: str) -> UserError:
        """A UserError with message `what` and TensorRT's first error: later ones follow from it."""
        with self._lock:
            errors = list(self._errors)
        why = errors[0].strip().splitlines()[0] if errors else "TensorRT gives no reason"
        more = f" (and {_count(len(errors) - 1)})" if len(errors) > 1 else ""
        return UserError(f"{what}: {why}{more}", f"{hint}; TensorRT's log: {self.path}")


def _count(errors: int) -> str:
    return f"{errors} other error{'s' if errors > 1 else ''}"


class Monitor(trt.IProgressMonitor):
    """Reports the phases and steps of a build. TensorRT calls it from several threads.

    A cancelled build ends at its next step, as it would by an exception in these methods.
    """

    def __init__(self, report: Callable[[str], None]) -> None:
        trt.IProgressMonitor.__init__(self)
        self._report = report
        self._steps: dict[str, int] = {}
        self._cancelled = Event()

    def cancel(self) -> None:
        """Stop the present build, or the next one."""
        self._cancelled.set()

    def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
        """A phase begins; phases may be nested."""
        self._steps[phase_name] = num_steps
        self._report(phase_name)

    def step_complete(self, phase_name: str, step: int) -> bool:
        """Step `step` (from 0) is done. Returns False to stop the build."""
        self._report(f"{phase_name}: {step + 1} of {self._steps.get(phase_name, '?')}")
        return not self._cancelled.is_set()

    def phase_finish(self, phase_name: str) -> None:
        """A phase is done or was given up."""
        self._steps.pop(phase_name, None)
