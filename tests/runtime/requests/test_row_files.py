"""Parked rows in files are found again by another process, and never taken for another's."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from snapexport import LLM, SamplingParams
from snapexport.contract.manifest import TensorSpec
from snapexport.errors import UserError
from snapexport.runtime.engine.rows import Row, host_buffer
from snapexport.runtime.requests.parked_rows import ParkedRow, RowFiles
from tests.oracle import cases
from tests.oracle.cases import Case

CASE = Case(extend=True, batch=2)
GREEDY = SamplingParams(max_tokens=9, ignore_eos=True)
STATES = [TensorSpec(name="past.0.key", dtype="float32", shape=[1, 2, 3])]
DIGEST = "d" * 64


def files(folder: Path, digest: str = DIGEST, most_bytes: int = 1 << 20) -> RowFiles:
    return RowFiles(folder, digest, STATES, most_bytes)


def row(*token_ids: int) -> ParkedRow:
    array = np.full((1, 2, 3), token_ids[-1], np.float32)
    count = len(token_ids)
    return ParkedRow(token_ids, Row(DIGEST, "cpu", (host_buffer(STATES[0], array),), count, count))


def written(folder: Path, *rows: ParkedRow, **options: Any) -> list[Path]:
    kept = files(folder, **options)
    for one in rows:
        kept.keep(one)
    kept.close()
    return sorted(folder.rglob("*.npz"))


def llm(folder: Path, case: Case = CASE) -> LLM:
    return LLM(cases.built(case).directory, threads=1, parked_rows=2, parked_dir=folder)


def test_a_turn_goes_on_from_the_row_that_another_llm_has_left(tmp_path: Path) -> None:
    first, second = list(cases.prompt(80)), list(cases.prompt(12, 1))
    one = llm(tmp_path)
    one.generate([first], GREEDY)
    (expected,) = one.generate([first + second], GREEDY)
    one.close()
    for path in tmp_path.rglob("*.npz"):
        path.unlink()
    before = llm(tmp_path)
    before.generate([first], GREEDY)
    before.close()
    after = llm(tmp_path)
    deltas = list(after.stream(first + second, GREEDY))
    assert deltas[0].cached_tokens == len(first)
    assert tuple(token for one in deltas for token in one.token_ids) == expected.token_ids


@pytest.mark.parametrize("in_files", [False, True])
@pytest.mark.parametrize("session", ["alice", "", "\ud800"])
def test_a_row_belongs_to_its_session(session: str, in_files: bool, tmp_path: Path) -> None:
    first, second = list(cases.prompt(80)), list(cases.prompt(12, 1))
    one = llm(tmp_path)
    one.generate([first], GREEDY, session=session)
    if in_files:
        one.close()
        one = llm(tmp_path)
    for asking in "bob", session:  # a row of bob's is then parked as well
        request = one.read([*first, *second], GREEDY, session=asking)
        assert next(one.stream(request)).cached_tokens == (80 if asking == session else 0)


@pytest.mark.parametrize("session", ["s" * 257, 7])
def test_session_that_cannot_be_used_is_refused(session: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be used"):
        llm(tmp_path).generate([[5, 6, 7]], GREEDY, session=session)
    alone = LLM(cases.built(CASE).directory, threads=1)
    with pytest.raises(UserError, match="a session needs parked rows"):
        alone.generate([[5, 6, 7]], GREEDY, session="alice")


def test_rows_of_another_build_are_not_found(tmp_path: Path) -> None:
    prompt = list(cases.prompt(80))
    one = llm(tmp_path)
    one.generate([prompt], GREEDY)
    one.close()
    other = llm(tmp_path, Case(extend=True, batch=3))
    assert next(other.stream([*prompt, 7], GREEDY)).cached_tokens == 0
    assert written(tmp_path / "a", row(1, 2)) and not files(tmp_path / "a", "e" * 64).longest(
        [1, 2, 3], 0
    )


def test_the_longest_row_beyond_those_in_memory_is_read(tmp_path: Path) -> None:
    written(tmp_path, row(1), row(5, 6), row(9, 1, 2))
    again = files(tmp_path)
    found = again.longest([5, 6, 7], 0)
    assert found and found.token_ids == (5, 6) and found.row.buffers[0].host.max() == 6
    assert again.longest([5, 6, 7], 2) is None, "memory has one as long"
    assert again.longest([9, 1, 2], 0) is None, "its row has nothing left to run"


def test_a_row_takes_the_place_of_the_one_that_it_began_with(tmp_path: Path) -> None:
    assert len(written(tmp_path, row(1), row(1, 2), row(1, 2, 3), row(1, 2, 3))) == 1


def test_the_rows_that_were_used_longest_ago_go_first(tmp_path: Path) -> None:
    size = written(tmp_path / "one", row(1, 2))[0].stat().st_size
    folder = tmp_path / "two"
    for index in range(4):
        paths = written(folder, row(index + 1, 2), most_bytes=2 * size)
        os.utime(max(paths, key=lambda path: path.stat().st_mtime), (index, index))
    again = files(folder)
    kept = [index for index in range(1, 5) if again.longest([index, 2, 3], 0)]
    assert kept == [3, 4]


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "no zip", "shape", "gone"])
def test_a_damaged_file_is_not_a_row(damage: str, tmp_path: Path) -> None:
    (path,) = written(tmp_path, row(1, 2))
    again, content = files(tmp_path), path.read_bytes()
    flipped = bytearray(content)
    flipped[content.rindex(b"NUMPY") + 130] ^= 1
    if damage == "gone":
        path.unlink()
    elif damage == "shape":
        np.savez(path, token_ids=np.array([1, 2]), **{"past.0.key": np.zeros((1, 3, 2))})
    else:
        path.write_bytes(
            {"cut": content[:-30], "flipped": flipped, "empty": b"", "no zip": b"x" * 99}[damage]
        )
    assert again.longest([1, 2, 3], 0) is None
    assert files(tmp_path).longest([1, 2, 3], 0) is None


def test_files_belong_only_to_the_owner(tmp_path: Path) -> None:
    (path,) = written(tmp_path / "rows", row(1, 2))
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_full_disk_loses_a_row_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = files(tmp_path)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.warns(UserWarning, match="No space left on device"):
        kept.keep(row(1, 2))
        kept.close()
    assert kept.longest([1, 2, 3], 0) is None and not list(tmp_path.rglob("*.npz*"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"parked_dir": "rows"}, "--parked-dir rows is not supported without --parked-rows"),
        ({"parked_rows": 1, "parked_dir": "/proc/rows"}, "cannot hold parked rows"),
        ({"parked_rows": 1, "parked_dir_bytes": 9}, "without --parked-dir"),
        ({"parked_rows": 1, "parked_dir": "rows", "parked_dir_bytes": -1}, "parked_dir_bytes -1"),
    ],
    ids=str,
)
def test_a_folder_that_cannot_hold_rows_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        LLM(cases.built(CASE).directory, threads=1, **options)
