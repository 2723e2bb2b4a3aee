"""The page of what goes with what, and the table that it is printed from."""

import pytest

from snapexport.contract.exclusions import RULES, Rule, broken, require_compatible
from snapexport.errors import UserError
from tools import combinations


def test_page_of_combinations_is_current() -> None:
    assert combinations.PAGE.read_text() == combinations.render(), (
        "run `python tools/combinations.py`"
    )


@pytest.mark.parametrize(
    "rule", [rule for rule in RULES if rule.other.example], ids=lambda rule: rule.choice.text
)
def test_every_rule_is_broken_by_its_own_examples(rule: Rule) -> None:
    facts = {**rule.choice.example, **rule.other.example}
    if rule.choice.example.keys() & rule.other.example.keys():
        return  # the two are values of one flag for the page alone
    assert rule in broken(facts)
    with pytest.raises(UserError, match="is not supported"):
        require_compatible(facts)
    assert not rule.is_broken(rule.choice.example) and not rule.is_broken(rule.other.example)


def test_page_refuses_what_a_wider_rule_refuses() -> None:
    """--cache-dtype int8 with --policy full breaks the rule of every --cache-dtype."""
    lines = [line.split(" | ") for line in combinations.render().splitlines()]
    head = next(cells for cells in lines if "`--policy full`" in cells)
    for row in ("`--cache-dtype int8`", "`--vote-queries repeat`"):
        cells = next(cells for cells in lines if cells[0] == f"| {row}")
        assert cells[head.index("`--policy full`")].isdecimal()
