"""Every test is one that pytest runs, and CI runs every file of tests."""

import re
import shlex
import subprocess
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tools import suites

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"


def test_pytest_enters_every_folder_of_tests(pytestconfig: pytest.Config) -> None:
    skipped: list[str] = pytestconfig.getini("norecursedirs")
    names = {part for file in TESTS.rglob("test_*.py") for part in file.relative_to(TESTS).parts}
    assert "house" in names
    assert not [name for name in names if any(fnmatch(name, one) for one in skipped)]


def test_ci_collects_every_file_of_tests() -> None:
    everything = {*TESTS.rglob("test_*.py")}
    run = {file for command in commands(*targets()) for file in collected(command)}
    assert len(everything) > 250
    assert sorted(everything - run) == []


def test_a_run_without_slow_tests_is_completed_by_one_of_them() -> None:
    """Of a command that leaves out marks, CI runs the rest as well, or a target by hand does."""
    left_out = {
        mark for command in commands(*targets()) for mark in re.findall(r"not (\w+)", command)
    }
    assert left_out <= {"architectures", "slow"}
    slow = [command for command in commands(*targets()) if "not slow" in command]
    assert all("tests/real_model" in command for command in slow)
    assert [*commands("real-model-long")][-1].endswith("-m slow tests/real_model")


def targets() -> list[str]:
    """What CI makes: the script's targets, and all that it may choose."""
    script = (ROOT / ".ci" / "run").read_text()
    assert "tools/suites.py" in script
    return [*re.findall(r"^make ([\w-]+)$", script, re.MULTILINE), *suites.SUITES]


def commands(*made: str) -> Iterator[str]:
    """The pytest commands of targets, as make would run them."""
    told = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", *made],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = told.stdout.replace("\\\n", " ").splitlines()
    yield from (" ".join(line.split()) for line in lines if "-m pytest" in line)


def collected(command: str) -> set[Path]:
    """The files that a command collects, by its paths and what it ignores."""
    words = shlex.split(command.partition("-m pytest")[2])
    ignored = [
        after.removeprefix("--ignore=")
        for word, after in zip(["", *words], words, strict=False)
        if word == "--ignore" or after.startswith("--ignore=")
    ]
    paths = [word for word in words if word.startswith("tests") and word not in ignored]
    outside = [ROOT / one for one in ignored]
    return {
        file
        for path in paths or ["tests"]
        for file in files_of(ROOT / path)
        if not any(file.is_relative_to(one) for one in outside)
    }


def files_of(path: Path) -> list[Path]:
    return [path] if path.is_file() else list(path.rglob("test_*.py"))


def test_a_command_collects_what_its_words_say() -> None:
    every = collected("python -m pytest -m 'not slow' --ignore tests/rtx --ignore=tests/house")
    assert TESTS / "rtx" / "test_fp8.py" not in every
    assert Path(__file__) not in every and len(every) > 250
    assert collected("python -m pytest tests/house") >= {Path(__file__)}


def test_a_suite_runs_if_its_paths_or_the_contract_changed() -> None:
    serving = "src/snapexport/serving"
    processes = [suite for suite in suites.SUITES if suite != suites.ARCHITECTURES]
    for path, expected in {
        "src/snapexport/contract/manifest.py": processes,
        "Makefile": processes,
        "pyproject.toml": [*suites.SUITES],
        "exporter/trace/__init__.py": ["architectures"],
        f"{serving}/triton/repository.py": ["test-triton"],
        "tests/serving/dynamo/test_soak.py": ["test-dynamo"],
        f"{serving}/worker.py": [*suites.SERVERS],
        "runtime/trt/engines.py": ["test-rtx"],
        "runtime/requests/request.py": [*suites.SERVERS],
        "runtime/requests/scheduler.py": ["test-triton"],
        "runtime/engine/rows.py": ["test-dynamo"],
        "runtime/requests/llm.py": ["test-clients"],
        "runtime/chat/chat_prompts.py": ["test-clients"],
        "runtime/requests/sampling.py": [],
        "exporter/read/gguf/reader.py": ["architectures", "real-model"],
        f"{serving}/openai/streams.py": ["test-clients"],
        "src/snapexport/genai/graph.py": ["test-genai"],
        "docs/reference/glossary.md": [],
        "tests/measure/eval/test_plots.py": [],
        "tools/studies/speed/peers/genai.py": [],
    }.items():
        assert suites.chosen([path]) == expected, path
    assert suites.chosen([]) == []
    assert suites.chosen(None) == [*suites.SUITES]


def test_every_word_of_a_suite_is_in_a_path() -> None:
    listed = suites.git("ls-files")
    assert listed
    named = set().union(*map(suites.words, listed.splitlines()))
    for suite, own in suites.SUITES.items():
        assert own | suites.SHARED <= named, f"{suite}: {own | suites.SHARED - named}"


def test_the_base_is_the_merge_base_or_a_commit_before(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"merge-base": "old", "rev-parse": "head"}
    monkeypatch.setattr(suites, "git", lambda command, *_: answers.get(command))
    monkeypatch.delenv("CI_BASE", raising=False)
    assert suites.base() == "old"
    del answers["merge-base"]
    assert suites.base() == "head"
    answers.clear()
    assert suites.base() is None
