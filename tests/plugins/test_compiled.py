"""A library is compiled again if anything that makes it has changed, and only then."""

from itertools import count
from pathlib import Path

import pytest

from tests.plugins import compiled
from tests.plugins.compiled import Libraries
from tests.store import Store


def test_library_is_compiled_once_for_equal_sources_and_flags(
    compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header, source = tmp_path / "include" / "one.h", tmp_path / "one.cpp"
    header.parent.mkdir()
    header.write_text("#define ONE 1\n")
    source.write_text('#include "one.h"\nextern "C" int one() { return ONE; }\n')
    made: list[list[str]] = []
    workers = count()
    monkeypatch.setattr(compiled.binding, "compile_library", lambda command: record(made, command))
    store = Store(tmp_path / "store")

    def make(*flags: str) -> Path:
        libraries = Libraries(tmp_path / f"worker{next(workers)}", store)
        words = [compiler, "-shared", *flags, f"-I{header.parent}", str(source), "-o"]
        return libraries.make("one", lambda out: [*words, str(out)])

    first = make()
    again = make()
    assert again.parent.name == first.parent.name and again.read_bytes() == first.read_bytes()
    assert len(made) == 1
    others = {make("-O2")}
    header.write_text("#define ONE 2\n")
    others.add(make())
    source.write_text(source.read_text() + "\n")
    others.add(make())
    assert len({one.parent.name for one in (first, *others)}) == 4 == len(made)


def record(made: list[list[str]], command: list[str]) -> None:
    made.append(command)
    Path(command[-1]).write_bytes(b"library")
