"""`snapexport genai` where genai is installed compares the tokenizers."""

import json
import os
import subprocess
from pathlib import Path

from snapexport.contract.build_directory import Build
from tests.genai.conftest import PYTHON
from tools.house import ROOT


def test_tokenizers_are_compared(vault_build: Build, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [PYTHON, "-m", "snapexport", "genai", vault_build.directory, "--out", out]
    found = subprocess.run(
        [*map(str, command)],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert found.returncode == 0, found.stderr
    wanted = "the same ids as ours for 8 texts; it puts 0 before a text only after "
    assert f"tokenizer: {wanted}" in found.stdout
    assert json.loads((out / "snapexport.json").read_text())["tokenizer"].startswith(wanted)
