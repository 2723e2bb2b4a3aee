"""Ranges of files are copied byte for byte, holes stay holes, whole blocks may be reflinks."""

import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapexport.files import copying
from snapexport.files.copying import CLONE_BLOCK, clone_file, copy_file, copy_range


def copied(source: Path, target: Path, begin: int, end: int, at: int) -> bytes:
    """The bytes that arrived, from `at` on."""
    with source.open("rb") as old, target.open("xb") as new:
        copy_range(old.fileno(), begin, end, new.fileno(), at)
    return target.read_bytes()[at:]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 9000), st.integers(0, 40_000), st.integers(0, 9000))
def test_a_copied_range_has_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, begin: int, length: int, at: int
) -> None:
    directory = tmp_path_factory.mktemp("range")
    content = os.urandom(50_000)
    (directory / "a").write_bytes(content)
    for number, place in enumerate(
        (at, begin % CLONE_BLOCK)
    ):  # the second is aligned for a reflink
        found = copied(directory / "a", directory / str(number), begin, begin + length, place)
        assert found == content[begin : begin + length]


def test_copied_file_keeps_its_holes(tmp_path: Path) -> None:
    with (tmp_path / "a").open("wb") as file:
        file.write(b"begin")
        file.truncate(1 << 34)
        file.seek(1 << 33)
        file.write(b"middle")
    progress: list[int] = []
    copy_file(tmp_path / "a", tmp_path / "b", progress.append)
    status = (tmp_path / "b").stat()
    assert (status.st_size, sum(progress)) == (1 << 34, 1 << 34)
    assert status.st_blocks * 512 < 1 << 20
    with (tmp_path / "b").open("rb") as file:
        assert file.read(6) == b"begin\0"
        file.seek(1 << 33)
        assert file.read(7) == b"middle\0"


def test_copy_range_shows_every_copied_byte(tmp_path: Path) -> None:
    content = os.urandom(100_000)
    (tmp_path / "a").write_bytes(content)
    digest = hashlib.sha256()
    with (tmp_path / "a").open("rb") as old, (tmp_path / "b").open("xb") as new:
        seen_all = copy_range(old.fileno(), 7, 99_000, new.fileno(), 0, seen=digest.update)
    assert seen_all
    assert digest.digest() == hashlib.sha256(content[7:99_000]).digest()


def test_whole_blocks_are_cloned_and_the_rest_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fake clone stands for a file system with reflinks."""
    clones: list[tuple[int, int, int]] = []

    def clone(source: int, begin: int, end: int, target: int, shift: int) -> bool:
        clones.append((begin, end, begin + shift))
        os.pwrite(target, os.pread(source, end - begin, begin), begin + shift)
        return True

    monkeypatch.setattr(copying, "_clone", clone)
    content = os.urandom(50_000)
    (tmp_path / "a").write_bytes(content)
    assert copied(tmp_path / "a", tmp_path / "b", 5000, 30_000, 904) == content[5000:30_000]
    assert clones == [(8192, 28_672, 4096)]
    assert copied(tmp_path / "a", tmp_path / "c", 5000, 50_000, 904) == content[5000:]
    assert clones[1:] == [(8192, 50_000, 4096)]  # up to the end of both files
    assert copied(tmp_path / "a", tmp_path / "d", 5000, 30_000, 905) == content[5000:30_000]
    assert len(clones) == 2


def test_a_file_that_cannot_be_cloned_leaves_no_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "_clone", lambda *_: False)
    (tmp_path / "a").write_bytes(b"x")
    assert not clone_file(tmp_path / "a", tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_a_target_that_exists_is_never_written_to(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_text(name)
    for copy in (copy_file, clone_file):
        with pytest.raises(FileExistsError):
            copy(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_text() == "b"
