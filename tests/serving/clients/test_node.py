"""Clients of npm, which `make test-clients` installs if it is there: openai and the AI SDK."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serving.clients.conftest import MODEL_NAME

SCRIPT = Path(__file__).with_name("node_clients.mjs")
SECONDS = 140


def test_clients_of_npm_pass() -> None:
    """The script comes from standard input: node then looks for packages from its folder."""
    if shutil.which("node") is None or not (Path(sys.prefix) / "node_modules").is_dir():
        pytest.skip("node and npm are not here: their clients were not run")
    done = subprocess.run(
        ["node", "--input-type=module"],
        cwd=sys.prefix,
        env=os.environ | {"MODEL": MODEL_NAME},
        input=SCRIPT.read_text(),
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("passed: ") == 12
