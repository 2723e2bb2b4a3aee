"""A folder of chunks keeps its bytes, its files and its owner's rights, whoever else uses it."""

import os
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from snapexport.errors import UserError
from snapexport.files.whole import locked
from snapexport.runtime.prompt_store import chunk_file
from snapexport.runtime.prompt_store.chunk_file import Chunk, keys
from snapexport.runtime.prompt_store.folder import KeyedFolder, NoRoomError, entries_of
from snapexport.runtime.prompt_store.store import ChunkStore

BUILD = "b" * 64
SIZE = 4
SHAPE = (2, SIZE, 8)
SPECS = {"past_key_values.0.key": ("float32", SHAPE), "past_votes.0": ("float32", SHAPE[:2])}


def chunks(count: int = 1, salt: str = "", first: int = 3) -> list[Chunk]:
    """A prompt's."""
    prompt = [*range(first, first + count * SIZE)]
    return [
        Chunk(
            key,
            BUILD,
            index,
            tuple(prompt[index * SIZE : (index + 1) * SIZE]),
            {name: np.full(shape, index + first, dtype) for name, (dtype, shape) in SPECS.items()},
        )
        for index, key in enumerate(keys(BUILD, salt, prompt, SIZE, count))
    ]


def opened(folder: Path, most_bytes: int | None = None, **options: Any) -> ChunkStore:
    return ChunkStore(KeyedFolder(folder, most_bytes, wait_seconds=0.05), BUILD, **options)


def keep(store: ChunkStore, *some: Chunk, used: int | None = None) -> None:
    for chunk in some:
        store.keep(chunk, (used or time.time_ns()) - 1000 * chunk.index)


def nbytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


ONE = sum(block.nbytes for block in chunk_file.blocks_of(chunks()[0]))
"""Bytes of a file."""


def test_a_chunk_is_read_as_it_was_kept(tmp_path: Path) -> None:
    kept, store = chunks(3), opened(tmp_path)
    keep(store, *kept)
    store.close()
    again = opened(tmp_path)
    for chunk in kept:
        parts = again.read(chunk, SPECS)
        assert parts is not None and parts.keys() == chunk.parts.keys()
        assert all(np.array_equal(parts[name], own) for name, own in chunk.parts.items())
    again.close()


def test_keys_are_of_all_tokens_the_build_and_the_salt() -> None:
    prompt = [5, 6, 7, 8, 9, 10, 11, 12]
    first, second = keys(BUILD, "", prompt, SIZE, 2)
    assert keys(BUILD, "", [*prompt[:4], 1, 2, 3, 4], SIZE, 2)[0] == first
    others = [
        keys(BUILD, "", [1, *prompt[1:]], SIZE, 2),
        keys(BUILD, "salt", prompt, SIZE, 2),
        keys("c" * 64, "", prompt, SIZE, 2),
        keys(BUILD, "", prompt, 2 * SIZE, 1),
    ]
    assert len({first, second, *(key for each in others for key in each)}) == 9
    assert keys(BUILD, "", [], SIZE, 0) == []


def test_files_and_folder_belong_only_to_the_owner(tmp_path: Path) -> None:
    store = opened(tmp_path / "a" / "kept")
    keep(store, *chunks())
    store.close()
    (path,) = (tmp_path / "a" / "kept").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_an_empty_folder_becomes_the_owners(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    KeyedFolder(tmp_path)
    assert tmp_path.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_a_folder_that_others_may_write_to_is_refused(mode: int, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").touch()
    tmp_path.chmod(mode)
    with pytest.raises(UserError, match="others may write there"):
        KeyedFolder(tmp_path)


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot hold prompt caches: File exists"):
        KeyedFolder(tmp_path / "file")


def test_those_used_longest_ago_go_first_and_of_a_prompt_its_end(tmp_path: Path) -> None:
    store = opened(tmp_path, 5 * ONE)
    old, new = chunks(3), chunks(2, first=40)
    now = time.time_ns()
    keep(store, *old, used=now - 3_000_000_000)
    keep(store, *new, used=now - 2_000_000_000)
    store.use([chunk.key for chunk in old], now - 1_000_000_000)
    keep(store, *chunks(2, first=80), used=now)
    store.close()
    again = opened(tmp_path)
    assert [again.has(chunk.key) for chunk in (*old, *new)] == [True] * 3 + [False] * 2
    keep(again, *chunks(first=120))
    again.close()
    shrunk = opened(tmp_path, 4 * ONE)
    assert [shrunk.has(chunk.key) for chunk in old] == [True, False, False]
    assert nbytes(tmp_path) <= 4 * ONE
    shrunk.close()


def test_a_prompt_larger_than_the_folder_keeps_its_beginning(tmp_path: Path) -> None:
    store = opened(tmp_path, 2 * ONE)
    kept = chunks(5)
    with pytest.warns(RuntimeWarning, match="no room beside chunks that were used later"):
        keep(store, *kept, used=time.time_ns())
        store.close()
    assert [store.has(chunk.key) for chunk in kept] == [True, True, False, False, False]
    assert store.counts["dropped"] == 3 and store.folder.evicted == 0


def test_a_file_of_a_time_to_come_does_not_stay_for_ever(tmp_path: Path) -> None:
    store = opened(tmp_path, ONE)
    keep(store, *chunks(), used=time.time_ns() + 10**15)
    keep(store, *chunks(first=50))
    store.close()
    assert [entry.key for entry in entries_of(tmp_path)] == [chunks(first=50)[0].key]


def test_bytes_are_held_at_every_moment_by_two_stores(tmp_path: Path) -> None:
    """Each has its own thread, and the lock is between files that were opened, as of processes."""
    most, seen, ends = 6 * ONE, [0], threading.Event()

    def watch() -> None:
        while not ends.is_set():
            try:
                seen.append(nbytes(tmp_path))
            except FileNotFoundError:
                continue

    watching = threading.Thread(target=watch)
    stores = [ChunkStore(KeyedFolder(tmp_path, most), BUILD) for _ in range(2)]
    watching.start()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one may find only chunks that the other used later
        for at in range(40):
            keep(stores[at % 2], *chunks(2, first=10 * at))
        for store in stores:
            store.close()
    ends.set()
    watching.join()
    assert 0 < max(seen) <= most
    assert sum(store.counts["dropped"] for store in stores) < 80


def test_chunks_beyond_what_may_wait_are_dropped(tmp_path: Path) -> None:
    store = opened(tmp_path, most_pending=2 * chunks()[0].nbytes)
    with locked(tmp_path):  # nothing is written meanwhile
        keep(store, *chunks(5))
        assert store.counts["dropped"] >= 3
        with pytest.warns(RuntimeWarning, match="another process keeps its lock"):
            store.close()
    assert not list(entries_of(tmp_path)) and store.counts["dropped"] == 5


def test_fifty_mutated_files_are_refused(tmp_path: Path) -> None:
    (chunk,) = chunks()
    content = b"".join(chunk_file.blocks_of(chunk))
    rng = np.random.default_rng(0)
    mutated = [b"", content[:-1], content[:8], content + b"\0", b"x" * len(content)]
    mutated += [content[:cut] for cut in rng.integers(1, len(content), 5)]
    while len(mutated) < 50:
        flipped = bytearray(content)
        flipped[int(rng.integers(len(content)))] ^= 1 << int(rng.integers(8))
        mutated.append(bytes(flipped))
    store = opened(tmp_path)
    path = tmp_path / f"{chunk.key}.safetensors"
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for one in mutated:
            path.write_bytes(one)
            assert store.read(chunk, SPECS) is None
            assert not path.exists(), "it makes room for a right one"
    assert len(told) == 1 and "damaged" in str(told[0].message)
    path.write_bytes(content)
    assert store.read(chunk, SPECS) is not None
    store.close()


@pytest.mark.parametrize("kind", ["other name", "link", "folder", "pipe"])
def test_files_of_others_are_neither_read_nor_removed(kind: str, tmp_path: Path) -> None:
    (chunk,), outside = chunks(), tmp_path / "outside"
    outside.write_bytes(b"".join(chunk_file.blocks_of(chunk)))
    folder = tmp_path / "kept"
    folder.mkdir(mode=0o700)
    named = folder / f"{chunk.key}.safetensors"
    match kind:
        case "other name":
            (folder / "mine.safetensors").write_bytes(b"mine")
        case "link":
            named.symlink_to(outside)
        case "folder":
            named.mkdir()
        case "pipe":
            os.mkfifo(named)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        store = opened(folder, ONE)
        assert store.read(chunk, SPECS) is None
        keep(store, *chunks(first=50))
        store.close()
        KeyedFolder(folder).clear()
    assert outside.exists()
    assert kind != "other name" or (folder / "mine.safetensors").exists()


@pytest.mark.parametrize("fault", ["full", "vanished", "read-only name"])
def test_a_fault_of_the_disk_is_one_warning(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "kept"
    store = opened(folder)
    kept = chunks(3)

    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    if fault == "full":
        monkeypatch.setattr(os, "write", full)
    elif fault == "vanished":
        folder.rmdir()
    else:
        monkeypatch.setattr(os, "open", full)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        keep(store, *kept)
        store.close()
        assert all(store.read(chunk, SPECS) is None for chunk in kept)
    kinds = [str(one.message) for one in told if "not kept" in str(one.message)]
    assert len(kinds) == 1 and store.counts["dropped"] == 3
    monkeypatch.undo()
    assert not folder.exists() or not list(folder.iterdir())


WRITER = """
import sys
from pathlib import Path
from tests.runtime.prompt_store.test_folder import chunks, keep, opened
store = opened(Path(sys.argv[1]), 1 << 20)
print("ready", flush=True)
for at in range(100_000):
    keep(store, *chunks(2, first=10 * at % 5000))
"""


def kill_while_writing(folder: Path, rounds: int) -> None:
    """Writers of other processes end in the midst; what they leave is whole, or is removed."""
    for at in range(rounds):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout and writer.stdout.readline() == "ready\n"
        time.sleep(0.01 + at % 7 / 100)
        writer.kill()
        writer.wait()
        store = opened(folder, 1 << 20)
        found = {entry.key for entry in entries_of(folder)}
        every = [chunk for first in range(0, 5000, 10) for chunk in chunks(2, first=first)]
        read = [chunk for chunk in every if chunk.key in found]
        assert len(read) == len(found)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert all(store.read(chunk, SPECS) is not None for chunk in read)
        store.close()
        assert not list(folder.glob("*.partial")) and nbytes(folder) <= 1 << 20


def test_a_killed_writer_leaves_whole_files(tmp_path: Path) -> None:
    kill_while_writing(tmp_path, 5)


def test_a_chunk_that_does_not_fit_is_not_written(tmp_path: Path) -> None:
    blocks = chunk_file.blocks_of(chunks()[0])
    folder = KeyedFolder(tmp_path, ONE - 1)
    with pytest.raises(NoRoomError):
        folder.write(chunks()[0].key, blocks, time.time_ns())
    assert not list(tmp_path.iterdir())
