"""`snapexport cache` tells what a folder of prompts' caches holds, and clears it."""

import json
from pathlib import Path

import pytest

from snapexport.cli.app import main
from tests.runtime.prompt_store.test_folder import BUILD, chunks, keep, opened


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    store = opened(tmp_path / "kept")
    keep(store, *chunks(3), *chunks(2, first=50))
    store.close()
    (tmp_path / "kept" / f"{'0' * 64}.safetensors").write_bytes(b"broken")
    (tmp_path / "kept" / "mine.txt").write_text("mine")
    return tmp_path / "kept"


def test_list_counts_the_chunks_of_each_build(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cache", "list", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {one["build"]: (one["chunks"], one["longest"]) for one in found["builds"]} == {
        BUILD: (5, 12),
        "": (1, 0),
    }
    files = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    assert found["bytes"] == files == sum(one["nbytes"] for one in found["builds"])
    assert main(["cache", "list", str(folder)]) == 0
    out = capsys.readouterr().out
    assert f"build {BUILD[:12]}: 5 chunks" in out and "unreadable files: 1 chunks" in out


def test_clear_removes_chunks_and_no_other_file(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cache", "clear", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["removed"] == 6
    assert [path.name for path in folder.iterdir()] == ["mine.txt"]
    assert main(["cache", "list", str(folder)]) == 0
    assert capsys.readouterr().out == f"{folder} holds no chunks\n"


@pytest.mark.parametrize("action", ["list", "clear"])
def test_a_folder_that_is_not_there_is_an_error_and_not_made(
    action: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cache", action, str(tmp_path / "none")]) == 2
    assert "hint: name the folder of --prompt-cache" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
