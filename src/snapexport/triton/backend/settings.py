"""What the model's config.pbtxt says to the backend. A word that it does not know is refused."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Self

from snapexport.contract.errors import UserError


@dataclass(frozen=True, slots=True)
class Settings:
    """`parameters` of config.pbtxt. build: where it is, from the version's directory."""

    build: Path
    max_pending: int
    threads: int | None
    token_budget: int | None

    @classmethod
    def read(cls, args: Mapping[str, str]) -> Self:
        """From what Triton gives to `initialize`. Raises UserError."""
        given = parameters(args)
        unknown = sorted(set(given) - {field.name for field in fields(cls)})
        if unknown:
            raise UserError(f"config.pbtxt: unknown parameter '{unknown[0]}'", "take it out")
        version = Path(args["model_repository"]) / args["model_version"]
        return cls(
            version / given.get("build", "build"),
            whole(given, "max_pending") or 0,
            whole(given, "threads"),
            whole(given, "token_budget"),
        )


def parameters(args: Mapping[str, str]) -> dict[str, str]:
    """The parameters of config.pbtxt as they are written."""
    config = json.loads(args["model_config"])
    return {key: one["string_value"] for key, one in config.get("parameters", {}).items()}


def whole(given: Mapping[str, str], name: str) -> int | None:
    """A parameter that is a whole number, if it is there."""
    if name not in given:
        return None
    if not given[name].isdecimal():
        raise UserError(f"config.pbtxt: {name} '{given[name]}' is no whole number", "correct it")
    return int(given[name])
