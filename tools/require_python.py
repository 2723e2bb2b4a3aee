"""Checks Python's version before an installer fails with a long message."""

import importlib.util
import sys

if sys.version_info < (3, 11):  # noqa: UP036 -- this is where older ones are told
    sys.exit(
        f"error: Python {sys.version.split()[0]} is too old\n\n"
        "hint: make PYTHON=python3.11, or any newer one"
    )
if importlib.util.find_spec("ensurepip") is None:
    sys.exit(
        "error: this Python has no ensurepip, so that `python -m venv` can't work\n\n"
        "hint: apt-get install python3-venv"
    )
