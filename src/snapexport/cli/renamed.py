"""Refuses flags under their former names, and names the present ones.

Each entry stays until the next format of build directories.
"""

from collections.abc import Mapping, Sequence

from snapexport.errors import UserError

RENAMED: Mapping[str, Mapping[str, str]] = {
    "build": {"--candidates": "--top-tokens"},
    "engine": {"--strip-plan": "--strip-weights"},
    "generate": {"--runner": "--backend"},
    "inspect": {"--runner": "--backend"},
    "diff": {"--runners": "--backends"},
}
"""By command: former flag -> present flag, which takes the same values."""


def require_current_flags(argv: Sequence[str]) -> None:
    """Raise a UserError for the first flag of a command that has another name now."""
    flags = RENAMED.get(argv[0], {}) if argv else {}
    for word in argv:
        name = word.partition("=")[0]
        if word == "--":
            return
        if name in flags:
            raise UserError(
                f"`{name}` has been renamed",
                f"use `{flags[name]}`, which takes the same values",
            )
