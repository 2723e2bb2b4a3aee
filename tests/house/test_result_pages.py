"""The pages of results say what the results say."""

import subprocess
import sys

import pytest

from tools.studies.result_pages import __main__ as result_pages
from tools.studies.result_pages.results import ROOT


def test_the_pages_are_those_of_the_results() -> None:
    command = [sys.executable, "-m", "tools.studies.result_pages", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_changed_number_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    read = result_pages.page_of
    monkeypatch.setattr(result_pages, "page_of", lambda name: read(name).replace("1", "2"))
    assert len([*result_pages.wrong_tables()]) > 10
    assert len([*result_pages.wrong_sentences()]) > 10
