"""What a row of the table of exclusions is: two choices, why they do not go together, a way out."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from snapexport.errors import UserError, flag_of

Facts = Mapping[str, Any]

_EITHER = "leave one of them out"
LEAVE_OUT = "leave it out"


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice that a rule is about. example: facts in which it holds.

    text: as users write it, with {field} for the value of a fact. joined: "with" a flag, "for" a
    model or a build, "by" a library, "on" a device.
    """

    text: str
    example: Facts
    holds: Callable[[Facts], bool]
    joined: str = "with"


@dataclass(frozen=True, slots=True)
class Rule:
    """`choice` is refused beside `other`. way_out: the hint."""

    choice: Choice
    other: Choice
    why: str
    way_out: str = _EITHER

    def is_broken(self, facts: Facts) -> bool:
        """Whether both hold."""
        return self.choice.holds(facts) and self.other.holds(facts)

    def error(self, facts: Facts) -> UserError:
        """The error for facts that break the rule."""
        choice, other = self.choice.text.format_map(facts), self.other.text.format_map(facts)
        why = f": {self.why}" if self.why else ""
        message = f"{choice} is not supported {self.other.joined} {other}{why}"
        return UserError(message, self.way_out.format_map(facts))


def value(field: str, value: str) -> Choice:
    """A flag with that value."""
    return Choice(f"{flag_of(field)} {value}", {field: value}, lambda f: f.get(field) == value)


def flag(field: str, example: object = True) -> Choice:
    """A flag that is given, whatever its value."""
    text = flag_of(field) if example is True else f"{flag_of(field)} {{{field}}}"
    return Choice(text, {field: example}, lambda f: is_given(f.get(field)))


def fact(text: str, field: str, value: object = True, joined: str = "with") -> Choice:
    """A fact with that value, in words."""
    return Choice(text, {field: value}, lambda f: f.get(field) == value, joined)


def some(text: str, field: str, example: object) -> Choice:
    """A fact that is neither absent nor 0 nor empty, in words."""
    return Choice(text, {field: example}, lambda f: bool(f.get(field)))


def is_given(value: object) -> bool:
    """Whether a flag has a value."""
    return value is not None and value is not False
