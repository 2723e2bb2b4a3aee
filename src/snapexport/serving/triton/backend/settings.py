"""Reads the settings in the model's config.pbtxt. Refuses unknown parameters."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from snapexport.contract.errors import UserError
from snapexport.runtime.open_executor import BackendName
from snapexport.serving.triton.interface import BUILD, STREAMING_PARAMETERS, TRITONS_PARAMETERS

BACKENDS: Mapping[str, BackendName] = {"CPU": "onnxruntime", "GPU": "tensorrt"}
"""Backend of the runtime for each kind of instance."""


@dataclass(frozen=True, slots=True)
class Settings:
    """`parameters` of config.pbtxt, and the backend for the kind of instance."""

    build: Path
    max_pending: int
    threads: int | None
    token_budget: int | None
    backend: BackendName

    @classmethod
    def read(cls, args: Mapping[str, str]) -> Self:
        """Read the arguments of `initialize`. Raises UserError."""
        given = parameters(args)
        unknown = sorted(set(given) - STREAMING_PARAMETERS - TRITONS_PARAMETERS)
        if unknown:
            raise UserError(f"config.pbtxt: unknown parameter '{unknown[0]}'", "take it out")
        max_pending = whole(given, "max_pending")
        if max_pending is None:
            raise UserError("config.pbtxt: parameter 'max_pending' is missing", "64 is usual")
        version = Path(args["model_repository"]) / args["model_version"]
        return cls(
            version / given.get("build", BUILD),
            max_pending,
            whole(given, "threads"),
            whole(given, "token_budget"),
            _backend(args["model_instance_kind"]),
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
        raise UserError(f"config.pbtxt: {name} '{given[name]}' is not a whole number", "correct it")
    return int(given[name])


def _backend(kind: str) -> BackendName:
    if kind not in BACKENDS:
        raise UserError(
            f"config.pbtxt: no instance of kind {kind}",
            "use KIND_CPU or KIND_GPU in instance_group",
        )
    return BACKENDS[kind]
