"""Reads what `snapexport calibrate` wrote, for the methods that builds take it for."""

from pathlib import Path
from typing import Any

from snapexport.errors import UserError
from snapexport.files.untrusted import read_object


def read_calibration(
    path: Path, most: int, form: str, further: set[str], hint: str
) -> dict[str, Any]:
    """What a file of `snapexport calibrate` holds, among it a list `layers`. Raises UserError.

    form: its format. further: keys beside `format`, `layers` and `calibration`.
    """
    try:
        found = read_object(path, most, hint)
    except FileNotFoundError:
        raise UserError(f"there is no file {path}", hint) from None
    if found.get("format") != form or set(found) != {"format", "layers", "calibration"} | further:
        what = form.removeprefix("snapexport ").removesuffix(" 1")
        raise UserError(f"{path} does not hold {what}", hint)
    if not isinstance(found["layers"], list):
        raise UserError(f"{path}: layers is no list", hint)
    return found
