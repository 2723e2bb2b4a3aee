"""Errors that the user can fix, with a hint how. All other exceptions are defects."""

from collections.abc import Iterator
from contextlib import contextmanager


class UserError(ValueError):
    """Bad input. message: what is wrong, with the value. hint: what to do."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})"


_FLAGS = {
    "max_num_batched_tokens": "--token-budget",
    "page": "--no-page",
    "speculates": "--no-speculation",
}
"""Flags that are not named after their field."""


def flag_of(field: str) -> str:
    """The flag of an options class's field: L_max is --L-max."""
    return _FLAGS.get(field, "--" + field.replace("_", "-"))


def require_at_least(flag: str, value: int, least: int) -> None:
    """Raise UserError for a flag's value below `least`."""
    if value < least:
        raise UserError(f"{flag} {value} is below {least}", f"use {flag} {least} or more")


def require_fields(options: object, **least: int | None) -> None:
    """Raise UserError for a field below its least value, or an empty or repeating list.

    None passes: it is chosen later. A bound of None allows every value.
    """
    for name, bound in least.items():
        given, flag = getattr(options, name), flag_of(name)
        values = given if isinstance(given, tuple) else () if given is None else (given,)
        if given == ():
            raise UserError(f"{flag} is empty", "give one or more, or leave it out")
        for value in values:
            if bound is not None:
                require_at_least(flag, value, bound)
            if values.count(value) > 1:
                raise UserError(f"{flag} has {value} twice", "give it once")


def first_line(error: BaseException) -> str:
    """First line of another library's error, to quote in a message: not one that only leads in.

    OpenVINO's begin with places in its sources, such as "Exception from src/core.cpp:84:".
    """
    lines = [line.strip() for line in str(error).strip().splitlines()] or [type(error).__name__]
    return next((line for line in lines if not line.endswith(":")), lines[0])


@contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """Turn a failed import into a UserError that names the extra to install."""
    try:
        yield
    except ModuleNotFoundError as missing:
        package = (missing.name or "of an import").partition(".")[0]
        raise UserError(
            f"the package '{package}' is not installed",
            f"pip install 'snapexport[{extra}]'",
        ) from missing
