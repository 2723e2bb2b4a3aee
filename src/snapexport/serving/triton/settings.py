"""Reads a model's parameters in config.pbtxt. Refuses unknown ones."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from snapexport.errors import UserError
from snapexport.runtime.engine.open_executor import BackendName
from snapexport.serving.options import ModelOptions
from snapexport.serving.triton.interface import BUILD, TRITONS_PARAMETERS

BACKENDS: Mapping[str, BackendName] = {"CPU": "onnxruntime", "GPU": "tensorrt"}
"""Backend of the runtime for each kind of instance."""


class Parameters(BaseModel):
    """Parameters of one of the models. In config.pbtxt all are texts."""

    model_config = ConfigDict(extra="forbid")


class StreamingParameters(Parameters):
    """Parameters of the model that holds the build."""

    build: str = BUILD
    max_pending: int = Field(ge=0)
    threads: int | None = Field(None, ge=1)
    max_num_batched_tokens: int | None = Field(None, ge=1, alias="token_budget")


class UnaryParameters(Parameters):
    """Parameters of the unary model. model: the streaming model's name."""

    model: str
    max_requests: int = Field(ge=1)


Kind = TypeVar("Kind", bound=Parameters)


def read_parameters(kind: type[Kind], config: Mapping[str, Any]) -> Kind:
    """The parameters of a config.pbtxt, given as JSON's objects. Raises UserError, with each fault.

    Triton's own parameters are left out.
    """
    texts = {
        name: value.get("string_value", "") for name, value in config.get("parameters", {}).items()
    }
    try:
        return kind.model_validate({n: v for n, v in texts.items() if n not in TRITONS_PARAMETERS})
    except ValidationError as invalid:
        faults = [
            f"parameter {name} '{texts.get(name, '')}': {error['msg']}"
            for error in invalid.errors()
            for name in map(str, error["loc"])
        ]
        raise UserError(
            f"config.pbtxt: {'; '.join(faults)}", f"it may have {', '.join(kind.model_fields)}"
        ) from None


def read_options(args: Mapping[str, str]) -> ModelOptions:
    """The build and how it runs, from the arguments of `initialize`. Raises UserError."""
    given = read_parameters(StreamingParameters, json.loads(args["model_config"])).model_dump()
    build = Path(args["model_repository"]) / args["model_version"] / given.pop("build")
    return ModelOptions(build, name=BUILD, **given)  # the model has its name from Triton


def backend_of(args: Mapping[str, str]) -> BackendName:
    """The runtime's backend for the kind of instance. Raises UserError."""
    if (kind := args["model_instance_kind"]) not in BACKENDS:
        raise UserError(
            f"config.pbtxt: instances of kind {kind} are not supported",
            "use KIND_CPU or KIND_GPU in instance_group",
        )
    return BACKENDS[kind]
