"""What tests keep outside of the clone is whole, made once, bounded, and named by its sources."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import builds, sources, store
from tests.store import Store


def never() -> bytes:
    raise AssertionError("it is there already")


def test_an_entry_is_made_once(tmp_path: Path) -> None:
    assert Store(tmp_path).content("one", lambda: b"first") == b"first"
    assert Store(tmp_path).content("one", never) == b"first"


@pytest.mark.parametrize("left", [b"", b"short", b"0" * 40], ids=["empty", "cut", "damaged"])
def test_a_damaged_entry_is_made_anew(left: bytes, tmp_path: Path) -> None:
    kept = Store(tmp_path)
    kept.put("one", b"first")
    (tmp_path / "entries" / "one").write_bytes(left)
    assert kept.get("one") is None
    assert kept.content("one", lambda: b"second") == kept.get("one") == b"second"


def test_who_comes_second_waits_for_the_entry(tmp_path: Path) -> None:
    begun, found = threading.Event(), []

    def slow() -> bytes:
        begun.set()
        time.sleep(0.2)
        return b"first"

    first = threading.Thread(target=lambda: Store(tmp_path).content("one", slow))
    first.start()
    begun.wait()
    found.append(Store(tmp_path).content("one", never))
    first.join()
    assert found == [b"first"]


def test_a_failure_leaves_no_entry(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="already"):
        Store(tmp_path).content("one", never)
    assert Store(tmp_path).content("one", lambda: b"second") == b"second"


def test_a_directory_comes_back_as_it_was(tmp_path: Path) -> None:
    def write() -> None:
        (out / "inner").mkdir(parents=True)
        (out / "inner" / "file").write_bytes(b"content")
        (out / "link").symlink_to("inner/file")

    out, kept = tmp_path / "first", Store(tmp_path / "store")
    assert kept.directory("one", write, out)
    out = tmp_path / "second"
    assert not kept.directory("one", write, out)
    assert (out / "link").readlink() == Path("inner/file")
    (out / "inner" / "file").write_bytes(b"changed")
    assert (tmp_path / "first" / "link").read_bytes() == b"content"


def test_what_was_used_longest_ago_goes_first(tmp_path: Path) -> None:
    kept = Store(tmp_path)
    for age, name in enumerate(("newest", "used", "old", "oldest")):
        kept.put(name, bytes(100))
        os.utime(tmp_path / "entries" / name, (1e9 - age,) * 2)
    assert kept.get("used")
    for left in ("lock", "name.1.partial"):
        path = tmp_path / ("locks" if left == "lock" else "entries") / left
        path.touch()
        os.utime(path, (1e9,) * 2)
    kept.trim(limit=300)
    assert kept.names() == ["newest", "used"]
    assert not [*(tmp_path / "locks").iterdir()]
    kept.trim(limit=132)
    assert kept.names() == ["used"]


def test_the_folder_is_outside_of_the_clone(monkeypatch: pytest.MonkeyPatch) -> None:
    store.usual_folder.cache_clear()
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert store.usual_folder() == Path("/elsewhere/snapexport-tests")
    store.usual_folder.cache_clear()


def test_the_key_of_a_build_changes_with_all_that_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def add_key() -> None:
        keys.append(builds.key(tmp_path, options))

    keys: list[str] = []
    config, budget, options = tmp_path / "config.json", tmp_path.with_suffix(".json"), {"K": 8}
    config.write_text("{}")
    add_key()
    options["K"] = 9
    add_key()
    options |= {"head_budget": budget}  # type: ignore[dict-item]
    for text in ("[]", "[1]"):
        budget.write_text(text)
        add_key()
    config.write_text("{ }")
    add_key()
    monkeypatch.setattr(sources, "digest", lambda module: "edited")
    add_key()
    assert len(set(keys)) == len(keys) == 6


def test_a_build_of_which_a_test_replaces_a_part_is_made_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(model: Path, out: Path, **options: int) -> None:
        made.append(out.name)
        out.mkdir(parents=True)

    made: list[str] = []
    monkeypatch.setattr(builds, "builder", SimpleNamespace(build=write, __name__="snapexport"))
    monkeypatch.setattr(builds.Build, "open", lambda out: out)
    (model := tmp_path / "model").mkdir()
    with builds.kept_in(Store(tmp_path / "store")):
        for name in ("made", "found"):
            builds.build(model, tmp_path / name, L_max=64)
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: 1)
            builds.build(model, tmp_path / "replaced", L_max=64)
        with monkeypatch.context() as patch:
            patch.setattr(store, "LIMIT", 1)  # no build imports it
            builds.build(model, tmp_path / "found beside it", L_max=64)
        builds.build(model, tmp_path / "reported", L_max=64, progress=1)
        builds.build(model, tmp_path / "found again", L_max=64)
    assert made == ["made", "replaced", "reported"]
    assert (tmp_path / "found again").is_dir()


LOADED = """
import sys
{statement}
print(*(name for name, module in sys.modules.items() if getattr(module, "__file__", None)))
"""
BUILD = """
from snapexport.builder import build
build("{checkpoint}", "{out}", L_max=64, kv_budget=24, prefill_chunk=32, verify=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("module", ["snapexport.exporter.trace", "tests.oracle.turns"])
def test_what_a_module_loads_is_among_its_sources(module: str) -> None:
    assert loaded(f"import {module}") <= sources.closure(module)


@pytest.mark.slow
def test_what_a_build_loads_is_among_its_sources(checkpoint: Path, tmp_path: Path) -> None:
    found = loaded(BUILD.format(checkpoint=checkpoint, out=tmp_path / "b"))
    assert "snapexport.exporter.trace" in found
    assert found <= sources.closure("snapexport.builder")


def loaded(statement: str) -> set[str]:
    """The modules of ours that a process has after a statement."""
    script = LOADED.format(statement=statement)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return {name for name in done.stdout.split() if sources.is_module(name)}


def test_sources_are_found_wherever_a_module_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "__init__.py": "def __getattr__(name):\n    from own import asked_later\n",
        "a.py": "from typing import TYPE_CHECKING\n"
        "from . import b\n"
        "if TYPE_CHECKING:\n    from own import typed\n"
        "def run():\n    from own.inner import c\n",
        "b.py": "TABLE = {'name': 'own.named', 'other': '.relative', 'text': 'a sentence.'}",
        "inner/__init__.py": "import own.with_inner",
        "inner/c.py": "from .. import d",
    }
    others = ("d", "named", "relative", "with_inner", "typed", "asked_later", "unused")
    for name in [*files, *(f"{name}.py" for name in others)]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(files.get(name, ""))
    monkeypatch.setitem(sources.FOLDERS, "own", tmp_path)
    found = {name.removeprefix("own.") for name in sources.closure("own.a")}
    assert found == {"own", "a", "b", "inner", "inner.c", "d", "named", "relative", "with_inner"}
