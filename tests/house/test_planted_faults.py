"""The faults that tools/planted_faults.py plants have a place in the sources of now."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "tools/planted_faults.py"


def test_every_fault_has_one_place_and_tests() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--list"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
