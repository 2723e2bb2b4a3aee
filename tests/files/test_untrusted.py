"""Files from outside: regular ones of a bounded size, and JSON that means one thing."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from snapexport.errors import UserError
from snapexport.files.untrusted import DEPTH, is_plain_name, parse_object, read_bytes, read_text


def read(path: Path, links: bool = True) -> bytes:
    return read_bytes(path, 100, "hint", links=links)


def bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))


def loop(path: Path) -> None:
    path.symlink_to(path)


def to_a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (os.mkfifo, "not a regular file"),
        (bind, "not a regular file"),
        (Path.mkdir, "not a regular file"),
        (to_a_device, "not a regular file"),
        (loop, "is a symbolic link"),
    ],
)
def test_what_is_not_a_regular_file_is_refused_without_waiting(
    tmp_path: Path, make: Callable[[Path], None], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path is short
    make(Path("x"))
    with pytest.raises(UserError, match=message):
        read(Path("x"))


def test_link_is_followed_only_where_links_are_allowed(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to("file")
    assert read(tmp_path / "link") == b"x"
    with pytest.raises(UserError, match="is a symbolic link"):
        read(tmp_path / "link", links=False)


def test_file_above_the_limit_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "x").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UserError, match="at most 100 are read"):
        read(tmp_path / "x")


def test_missing_file_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "x")


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"a\xff")
    with pytest.raises(UserError, match="not UTF-8: invalid start byte at byte 1"):
        read_text(tmp_path / "x", 100, "hint")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "a": 2}', "the key 'a' occurs twice"),
        ('{"b": {"a": 1, "a": 1}}', "the key 'a' occurs twice"),
        ('{"a": NaN}', "NaN is not a JSON number"),
        ('{"a": -Infinity}', "-Infinity is not a JSON number"),
        ('{"a": 1e999}', "1e999 is too large"),
        ('{"a": ' + "9" * 5000 + "}", "not JSON"),
        ('{"a": "\\ud800"}', "lone surrogate"),
        ('{"\\uDEAD": 1}', "lone surrogate"),
        ('{"a": ' + "[" * DEPTH + "]" * DEPTH + "}", "nested too deeply"),
        ('{"a": ' * 100_000, "nested too deeply"),
        ("[1]", "does not hold a JSON object"),
        ("{", "not JSON"),
        ("", "not JSON"),
        ("\ufeff{}", "not JSON"),
    ],
)
def test_json_that_is_broken_or_means_two_things_is_refused(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_object(text.encode(), "x.json", "hint")


def test_json_as_deep_as_allowed_and_with_whole_surrogate_pairs_is_read() -> None:
    deep = "[" * (DEPTH - 1) + "]" * (DEPTH - 1)
    assert set(parse_object(f'{{"a": {deep}, "\\ud83d\\ude00": 1.5}}'.encode(), "x", "")) == {
        "a",
        "😀",
    }


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/a", "../a", "a\0"])
def test_name_that_leads_elsewhere_is_not_plain(name: str) -> None:
    assert not is_plain_name(name)
    assert is_plain_name("model-00001-of-00002.safetensors")
