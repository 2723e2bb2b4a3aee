"""Errors that are the user's to mend, apart from those that are ours."""

from collections.abc import Iterator
from contextlib import contextmanager


class UserError(ValueError):
    """Bad input. `message` says what is wrong and names the value; `hint` says the way out."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})"


def first_line(error: Exception) -> str:
    """What another library's error says, as far as it fits into ours."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


@contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """Turn a failed import into an error that names the extra which brings the package."""
    try:
        yield
    except ModuleNotFoundError as missing:
        package = (missing.name or "of an import").partition(".")[0]
        raise UserError(
            f"the package '{package}' is not installed",
            f"pip install 'snapexport[{extra}]'",
        ) from missing
