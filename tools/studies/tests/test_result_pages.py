"""The check of the pages of results sees a changed number."""

import pytest

from tools.studies.result_pages import __main__ as result_pages


def test_a_changed_number_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    read = result_pages.page_of
    monkeypatch.setattr(result_pages, "page_of", lambda name: read(name).replace("1", "2"))
    assert len([*result_pages.wrong_tables()]) > 10
    assert len([*result_pages.wrong_sentences()]) > 10
