"""TensorRT's progress, as lines of text; and a way to stop it."""

from collections.abc import Callable
from threading import Event

import tensorrt as trt


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
