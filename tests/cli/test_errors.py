"""Internal errors, and names that a terminal or rich would take for orders."""

import json
import shutil
from pathlib import Path

import pytest

from snapexport.cli import app, console, inspect, progress
from snapexport.cli.app import main
from snapexport.contract.build_directory import Build
from snapexport.errors import UserError
from tests.refused import refused


def fail(error: Exception) -> None:
    raise error


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(inspect, "run", lambda _: fail(KeyError("a\nb")))
    return monkeypatch


def test_unexpected_exception_is_an_internal_error_without_traceback(
    failing: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", "a b"]) == 70
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        "error: internal: KeyError: 'a\\nb'\n\n"
        "hint: this is a defect of snapexport: please report it, with what "
        "`snapexport --traceback inspect 'a b'` prints\n"
    )


def test_traceback_is_printed_if_it_is_asked_for(
    failing: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--traceback", "inspect", "a"]) == 70
    err = capsys.readouterr().err
    assert err.startswith("Traceback") and "in fail" in err and "error: internal: KeyError" in err


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (MemoryError(), "not enough memory"),
        (IsADirectoryError(21, "Is a directory", "a"), "Is a directory: a"),
        (UserError("a\x1b[31mb\ud800", "c\x07"), r"a\x1b[31mb\ud800"),
    ],
)
def test_error_has_one_form_and_no_control_characters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, says: str
) -> None:
    monkeypatch.setattr(inspect, "run", lambda _: fail(error))
    assert says in refused(capsys, "inspect", "a")


def test_exit_request_of_a_signal_is_not_an_internal_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(_: object) -> None:
        raise SystemExit(143)

    monkeypatch.setattr(inspect, "run", leave)
    with pytest.raises(SystemExit):
        main(["inspect", "a"])


@pytest.mark.parametrize("name", ["[", "a[/b]", "[bold]x[/bold]", ":smile:", "a\\[/]"])
def test_build_in_a_directory_of_any_name_is_shown(
    tiny_build: Build, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    directory = tmp_path / name
    directory.parent.mkdir(exist_ok=True, parents=True)
    shutil.copytree(tiny_build.directory, directory)
    assert main(["inspect", str(directory)]) == 0
    shown = capsys.readouterr().out
    assert name in shown
    assert main(["inspect", str(directory), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["build"] == str(directory)


def test_consoles_take_no_text_for_markup(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.BuildProgress() as shown:
        shown.stage("[/x]")
        shown.written(1)
    assert app.COMMANDS["inspect"] is inspect
    for one in (console.OUT, console.ERR):
        with one.capture() as captured:
            one.print("[/x] :smile:")
        assert captured.get() == "[/x] :smile:\n"
