"""The lint's tables of operators and types, by TensorRT's version."""

import pytest

from snapexport.errors import UserError
from snapexport.graphs.lint import table_for


@pytest.mark.parametrize(
    ("requested", "table"),
    [
        (None, "11.0"),
        ("11", "11.0"),
        ("11.4.0.30", "11.0"),
        ("10.15", "10.15"),
        ("10.16.1", "10.15"),
    ],
)
def test_lint_table_is_the_newest_up_to_the_requested_version(
    requested: str | None, table: str
) -> None:
    assert table_for(requested).version == table


@pytest.mark.parametrize(("requested", "why"), [("10.14", "too old"), ("newest", "no version")])
def test_lint_refuses_old_and_malformed_versions(requested: str, why: str) -> None:
    with pytest.raises(UserError, match=why):
        table_for(requested)


def test_lint_tables_of_two_versions_differ_in_operators() -> None:
    assert "Swish" in table_for("11.0").types and "Swish" not in table_for("10.15").types
