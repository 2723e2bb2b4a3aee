"""Runs a command that must be refused: `error: ...`, a blank line, `hint: ...`, status 2."""

import pytest

from snapexport.cli.app import main


def refused(capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    """The line of the error."""
    assert main([str(word) for word in argv]) == 2
    out, err = capsys.readouterr()
    error, empty, hint = err.strip("\n").split("\n")
    assert (out, empty) == ("", "")
    assert (error[:7], hint[:6]) == ("error: ", "hint: ")
    return error
