"""An interrupt ends the program quietly from its first moment on."""

import signal
import subprocess
import sys
import time

import pytest


@pytest.mark.parametrize("after", [0.15, 0.3, 0.5])
def test_an_interrupt_while_modules_load_ends_without_traceback(after: float) -> None:
    command = [sys.executable, "-m", "snapexport", "generate", "no.build", "--prompt-file", "-"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    time.sleep(after)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert "snapexport" not in error, error  # no traceback through our files
    # Before the first line of ours Python's own handling is all there is.
    assert process.returncode in (130, -signal.SIGINT, 1)
