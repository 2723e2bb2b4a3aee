"""The pages of results say what the results say."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_pages_are_those_of_the_results() -> None:
    command = [sys.executable, "-m", "tools.studies.result_pages", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
