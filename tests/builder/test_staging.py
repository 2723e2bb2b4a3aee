"""A build directory appears whole or not at all."""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from snapexport.builder import staging
from snapexport.builder.staging import CONTENT, scratch, staged
from snapexport.cli.app import main
from snapexport.cli.progress import BuildProgress
from snapexport.contract.manifest import MANIFEST
from snapexport.errors import UserError
from tests.refused import refused


def old_build(target: Path) -> Path:
    target.mkdir()
    (target / MANIFEST).write_text("old")
    return target


@pytest.fixture
def without_renameat2(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on NFS."""
    monkeypatch.setattr(staging.ctypes, "CDLL", lambda _: object())


@pytest.fixture(params=["renameat2", "without"])
def both(request: pytest.FixtureRequest) -> None:
    """As with renameat2, and as on NFS."""
    if request.param == "without":
        request.getfixturevalue("without_renameat2")


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


@pytest.mark.usefixtures("both")
def test_existing_build_is_replaced_only_with_overwrite(tmp_path: Path) -> None:
    target = old_build(tmp_path / "b")
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
def test_staging_never_overwrites_a_path_that_is_not_a_build(
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


@pytest.mark.parametrize("where", ["fcntl.flock", "pathlib.Path.touch"])
def test_a_signal_before_the_marker_is_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def leave(*_: object) -> None:
        assert len(list(tmp_path.iterdir())) == 1
        sys.exit(143)

    monkeypatch.setattr(where, leave)
    with pytest.raises(SystemExit), scratch(tmp_path / "b"):
        raise AssertionError("not reached")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_build_interrupted_while_it_writes_weights_leaves_nothing(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """In this process: a new one would first load PyTorch."""
    unfinished = []

    def interrupt(_: BuildProgress, nbytes: int) -> None:
        unfinished.extend(path.name for path in tmp_path.iterdir())
        signal.raise_signal(number)

    monkeypatch.setattr(BuildProgress, "written", interrupt)
    with pytest.raises(SystemExit) as left:
        main(build_flags(checkpoint, tmp_path / "b"))
    assert left.value.code == 128 + number
    assert [name.startswith(".b.partial-") for name in unfinished] == [True]
    assert list(tmp_path.iterdir()) == []


def test_next_build_removes_the_unfinished_directory_of_a_killed_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`tests.fuzz.kills` kills real builds."""
    staging_process = f"""
import os, pathlib, signal
from snapexport.builder.staging import staged
with staged(pathlib.Path({str(tmp_path / "b")!r}), overwrite=False) as directory:
    (directory / "file").write_text("x")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", staging_process])
    assert done.returncode == -signal.SIGKILL
    (partial,) = tmp_path.iterdir()
    with staged(tmp_path / "b", overwrite=False):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
    assert capsys.readouterr().err == f"note: removed {partial}: its process was killed\n"


def test_target_name_with_an_asterisk_is_not_a_pattern(tmp_path: Path) -> None:
    other = tmp_path / ".a.partial-0a1b2c3d"
    other.mkdir()
    with staged(tmp_path / "*", overwrite=False):
        pass
    assert other.is_dir()


def test_staging_refuses_a_place_that_a_running_build_is_written_for(tmp_path: Path) -> None:
    with staged(tmp_path / "b", overwrite=False) as first:
        with (
            pytest.raises(UserError, match="another process is writing"),
            staged(tmp_path / "b", overwrite=False),
        ):
            pass
        assert first.is_dir()


def test_scratch_beside_a_place_does_not_keep_a_build_from_it(tmp_path: Path) -> None:
    with scratch(tmp_path / "b") as first:
        with staged(tmp_path / "b", overwrite=False):
            pass
        assert first.is_dir()


@pytest.mark.usefixtures("both")
def test_directory_that_appears_during_a_build_is_left_as_it_is(tmp_path: Path) -> None:
    (target := tmp_path / "b").mkdir()
    with pytest.raises(UserError, match="appeared while"), staged(target / "c", overwrite=False):
        (target / "c").write_text("thesis")
    assert [path.name for path in target.iterdir()] == ["c"]
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


@pytest.mark.usefixtures("both")
def test_what_takes_an_overwritten_builds_place_meanwhile_is_kept(tmp_path: Path) -> None:
    target = old_build(tmp_path / "b")
    with pytest.raises(UserError, match="was replaced while"), staged(target, overwrite=True):
        target.rename(tmp_path / "moved")
        target.mkdir()
        (target / MANIFEST).write_text("another build")
    assert (target / MANIFEST).read_text() == "another build"
    with pytest.raises(UserError, match="was replaced while"), staged(target, overwrite=True):
        (target / MANIFEST).rename(target / "thesis.txt")
    assert (target / "thesis.txt").read_text() == "another build"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "moved"]


@pytest.mark.usefixtures("both")
def test_overwritten_build_that_was_removed_meanwhile_is_not_an_error(tmp_path: Path) -> None:
    target = old_build(tmp_path / "b")
    with staged(target, overwrite=True) as directory:
        (directory / MANIFEST).write_text("new")
        target.rename(tmp_path / "moved")
    assert (target / MANIFEST).read_text() == "new"


def test_users_directory_with_a_name_like_ours_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / ".b.partial-0a1b2c3d"
    mine.mkdir()
    (mine / "thesis.txt").write_text("x")
    with staged(tmp_path / "b", overwrite=False):
        pass
    assert (mine / "thesis.txt").is_file()
    assert capsys.readouterr().err.startswith(f"note: {mine} is kept: ")


def test_users_directory_that_a_kill_left_exchanged_is_kept_with_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left = tmp_path / ".b.partial-0a1b2c3d"
    (left / CONTENT).mkdir(parents=True)
    (left / CONTENT / "thesis.txt").write_text("x")
    with staged(tmp_path / "b", overwrite=False):
        pass
    assert (left / CONTENT / "thesis.txt").is_file()
    assert capsys.readouterr().err.startswith(f"note: {left} is kept: ")


@pytest.mark.usefixtures("both")
@pytest.mark.parametrize("renames", range(4))
def test_a_process_killed_while_names_change_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renames: int
) -> None:
    """renames: how many are done without renameat2; 3: all of them."""
    target, left = old_build(tmp_path / "b"), iter(range(renames))
    rename = Path.rename

    def rename_or_die(path: Path, to: Path) -> Path:
        return rename(path, to) if next(left, None) is not None else os._exit(9)

    if (child := os.fork()) == 0:
        monkeypatch.setattr(Path, "rename", rename_or_die)
        monkeypatch.setattr(staging.shutil, "rmtree", lambda *_, **__: os._exit(9))
        with staged(target, overwrite=True) as directory:
            (directory / MANIFEST).write_text("new")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    with pytest.raises(UserError, match="exists already"), staged(target, overwrite=False):
        pass
    assert (target / MANIFEST).read_text() in {"old", "new"}
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_overwrite_refuses_a_link_to_a_build(tmp_path: Path) -> None:
    old_build(tmp_path / "b")
    (tmp_path / "link").symlink_to("b")
    with pytest.raises(UserError, match="not a build"), staged(tmp_path / "link", overwrite=True):
        pass


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
