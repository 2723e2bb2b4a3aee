"""An interrupt ends the program quietly, also while its modules are loaded."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.patience import PATIENCE

_SIGTERM = 1 << (signal.SIGTERM - 1)


def catches_signals(pid: int) -> bool:
    """Whether our handlers stand: Python itself catches SIGINT, but never SIGTERM."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) & _SIGTERM)
    return False


@pytest.mark.parametrize("after", [0, 0.05, 0.2])
def test_an_interrupt_while_modules_load_ends_without_traceback(after: float) -> None:
    command = [sys.executable, "-m", "snapexport", "generate", "no.build", "--prompt-file", "-"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while process.poll() is None and not catches_signals(process.pid):
        time.sleep(0.002)
    time.sleep(after)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=PATIENCE)
    assert "Traceback" not in error
    assert process.returncode == 130
    assert error.endswith("interrupted\n") or after == 0


def test_a_signal_while_an_object_is_freed_ends_the_program() -> None:
    program = """if True:
        import os, signal, time
        from snapexport.cli.signals import end_on_signals
        class Freed:
            def __del__(self): os.kill(os.getpid(), signal.SIGINT)
        end_on_signals()
        freed = Freed()
        del freed
        time.sleep(600)"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.slow
def test_a_signal_ends_the_program_before_modules_are_freed() -> None:
    """Libraries clean up as ever. A native thread that uses a freed module would abort the end."""
    program = """if True:
        import atexit, os, signal
        from snapexport import __main__ as start
        from snapexport.cli import app

        class Module:
            def __del__(self):
                os.abort()

        module = Module()
        app.main = lambda: atexit.register(print, "clean") and signal.raise_signal(signal.SIGTERM)
        start.main()
    """
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (128 + signal.SIGTERM, "clean\n")
