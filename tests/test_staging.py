"""A build directory appears whole or not at all."""

import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from snapexport.builder.staging import staged
from snapexport.cli.app import main
from snapexport.cli.console import BuildProgress
from snapexport.contract.errors import UserError
from snapexport.contract.manifest import MANIFEST
from tests.refused import refused


def test_staged_directory_appears_at_its_target_when_complete(tmp_path: Path) -> None:
    with staged(tmp_path / "a" / "b", overwrite=False) as directory:
        (directory / "file").write_text("x")
        assert not (tmp_path / "a" / "b").exists()
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]
    assert (tmp_path / "a" / "b" / "file").read_text() == "x"


def test_failed_staging_leaves_neither_target_nor_parents(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), staged(tmp_path / "a" / "b", overwrite=False):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_existing_build_is_replaced_only_with_overwrite(tmp_path: Path) -> None:
    target = tmp_path / "b"
    target.mkdir()
    (target / MANIFEST).write_text("old")
    with pytest.raises(UserError, match="exists already"), staged(target, overwrite=False):
        pass
    with pytest.raises(ZeroDivisionError), staged(target, overwrite=True):
        raise ZeroDivisionError
    assert (target / MANIFEST).read_text() == "old"
    with staged(target, overwrite=True) as directory:
        (directory / MANIFEST).write_text("new")
    assert (target / MANIFEST).read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch])
def test_staging_never_overwrites_a_path_that_is_no_build(
    tmp_path: Path, make: Callable[..., None]
) -> None:
    target = tmp_path / "precious"
    make(target)
    if target.is_dir():
        (target / "thesis.txt").write_text("x")
    with pytest.raises(UserError, match="not a build"), staged(target, overwrite=True):
        pass
    assert target.exists()


def build_flags(checkpoint: Path, out: Path) -> list[str]:
    return ["build", "--model", str(checkpoint), "--L-max", "64", "--out", str(out)]


def start_build(checkpoint: Path, out: Path) -> tuple["subprocess.Popen[str]", Path]:
    """A build that is under way, and its unfinished directory."""
    command = [sys.executable, "-m", "snapexport", *build_flags(checkpoint, out)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if partial := list(out.parent.glob(f".{out.name}.partial-*")):
            return process, partial[0]
        time.sleep(0.01)
    raise AssertionError("the build never began to write")


def test_an_interrupted_build_leaves_nothing(checkpoint: Path, tmp_path: Path) -> None:
    process, _ = start_build(checkpoint, tmp_path / "b")
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert "Traceback" not in errors
    assert process.returncode == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


def test_a_build_interrupted_while_it_writes_weights_leaves_nothing(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C, in this process: a new one would first load PyTorch."""
    unfinished = []

    def interrupt(_: BuildProgress, nbytes: int) -> None:
        unfinished.extend(path.name for path in tmp_path.iterdir())
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(BuildProgress, "written", interrupt)
    with pytest.raises(SystemExit) as left:
        main(build_flags(checkpoint, tmp_path / "b"))
    assert left.value.code == 128 + signal.SIGINT
    assert [name.startswith(".b.partial-") for name in unfinished] == [True]
    assert list(tmp_path.iterdir()) == []


def test_next_build_removes_the_unfinished_directory_of_a_killed_one(
    checkpoint: Path, tmp_path: Path
) -> None:
    process, partial = start_build(checkpoint, tmp_path / "b")
    process.kill()
    process.communicate(timeout=60)
    assert partial.is_dir()
    assert not (tmp_path / "b").exists()
    with staged(tmp_path / "b", overwrite=False):
        pass
    assert not partial.exists()


def test_target_name_with_an_asterisk_is_not_a_pattern(tmp_path: Path) -> None:
    other = tmp_path / ".a.partial-x"
    other.mkdir()
    with staged(tmp_path / "*", overwrite=False):
        pass
    assert other.is_dir()


def test_staging_keeps_the_unfinished_directory_of_a_running_build(tmp_path: Path) -> None:
    with staged(tmp_path / "b", overwrite=False) as first:
        with pytest.raises(ZeroDivisionError), staged(tmp_path / "b", overwrite=False):
            raise ZeroDivisionError
        assert first.is_dir()


@contextmanager
def full_disk() -> Iterator[None]:
    """A limit on the size of files stands for it: writing fails half-way."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_build_on_a_full_disk_is_an_error_and_leaves_nothing(
    capsys: pytest.CaptureFixture[str], checkpoint: Path, tmp_path: Path
) -> None:
    assert main(build_flags(checkpoint, tmp_path / "before")) == 0  # its traces are cached now
    capsys.readouterr()
    with full_disk():
        error = refused(capsys, *build_flags(checkpoint, tmp_path / "b"))
    assert error.startswith("error: File too large")
    assert [path.name for path in tmp_path.iterdir()] == ["before"]
