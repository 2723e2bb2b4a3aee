"""The lint says of a graph what the real parser and builder say, or the page explains why not."""

from tests.rtx.faults import EXPLAINED, PAGE, page, rows


def test_lint_and_library_agree_or_the_difference_is_explained() -> None:
    assert len(rows()) > 400
    differing = {row.name for row in rows() if not row.agrees}
    assert differing == set(EXPLAINED)


def test_page_of_the_agreement_is_current() -> None:
    assert PAGE.read_text() == page(), "run: PYTHONPATH=. python -m tests.rtx.faults"
