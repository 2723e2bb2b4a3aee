"""Follows a JSON schema's references within the schema itself."""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote

FAR: Final = object()
"""What a reference to elsewhere, or to nothing, points to."""


def found_at(root: Any, pointer: Any) -> Any:
    """What a reference such as #/$defs/a points to; FAR if it is not in there."""
    if not isinstance(pointer, str) or not (pointer == "#" or pointer.startswith("#/")):
        return FAR
    place = root
    for step in unquote(pointer).split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(place, Mapping) and key in place:
            place = place[key]
        elif isinstance(place, list) and key in map(str, range(len(place))):
            place = place[int(key)]
        else:
            return FAR
    return place
