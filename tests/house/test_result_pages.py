"""The pages of results say what the results say, and a changed number is found."""

import subprocess
import sys
from pathlib import Path

import pytest

COMMANDS = "tools.studies.result_pages --check", "pytest tools/studies/tests/test_result_pages.py"


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_the_pages_are_those_of_the_results(command: str) -> None:
    run, root = [sys.executable, "-m", *command.split()], Path(__file__).parents[2]
    done = subprocess.run(run, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
