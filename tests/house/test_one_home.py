"""Sizes in bytes, atomic writes and headers of binary files have one module each."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import snapexport

PACKAGE = Path(snapexport.__file__).parent

HOMES = {
    "safetensors headers": (r"data_offsets", {"files/safetensors.py"}),
    "binary headers": (r"\"<Q\"", {"files/safetensors.py", "exporter/read/gguf/header.py"}),
    "unfinished files": (
        r"[\"'.]partial\b[\"'-]",
        {"files/whole.py", "builder/staging.py", "exporter/read/unfinished.py"},
    ),
    "renames": (r"os\.(rename|replace)\(|\w\.rename\(", {"builder/staging.py"}),
    "hard links": (r"os\.link\(", {"exporter/weights/place.py", "measure/eval/loaded_systems.py"}),
    "bytes for people": (r"/ 2\*\*[123]0|/ \(1 <<|\{[^}]*\} ?[KMG]iB", {"contract/memory.py"}),
}


def sources() -> Iterator[tuple[str, str]]:
    for folder in (PACKAGE, *(p for p in PACKAGE.iterdir() if p.is_symlink())):
        for file in folder.rglob("*.py"):
            yield file.relative_to(PACKAGE).as_posix(), file.read_text()


@pytest.mark.parametrize("task", HOMES)
def test_task_with_a_home_module_is_done_in_no_other(task: str) -> None:
    pattern, homes = HOMES[task]
    found = {path for path, text in sources() if re.search(pattern, text)}
    assert found <= homes
