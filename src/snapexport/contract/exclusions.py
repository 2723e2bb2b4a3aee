"""The table of choices that do not go together, with why and what to do instead.

`build` and `plan` read it for flags, a manifest for what it says, and what runs a build for its
options; `tools/combinations.py` prints it as docs/reference/combinations.md. Range checks of a
single value stand where the value does.

Facts are flags by field, and what is known of a model or a build. What is not known is absent.
"""

from collections.abc import Iterator

from snapexport.contract.build_rules import BUILD_RULES
from snapexport.contract.rule import Facts, Rule
from snapexport.contract.run_rules import RUN_RULES
from snapexport.errors import UserError

RULES: tuple[Rule, ...] = BUILD_RULES + RUN_RULES


def require_compatible(facts: Facts) -> None:
    """Raise UserError for the first rule that the facts break."""
    if refused := refusal(facts):
        raise refused


def refusal(facts: Facts) -> UserError | None:
    """The error of the first rule that the facts break."""
    return next((rule.error(facts) for rule in broken(facts)), None)


def broken(facts: Facts) -> Iterator[Rule]:
    """The rules that the facts break, in the table's order."""
    return (rule for rule in RULES if rule.is_broken(facts))
