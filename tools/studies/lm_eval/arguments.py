"""Reads the harness's arguments: of the model, and of each generation. Unknown ones are refused."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import UnionType
from typing import Any

from snapexport.errors import UserError
from snapexport.runtime.engine.open_executor import BackendName
from snapexport.runtime.requests.request import SamplingParams


@dataclass(frozen=True, kw_only=True)
class ModelArgs:
    """--model_args. build: a build directory. max_gen_toks: for tasks that give no length.

    The other fields are LLM's.
    """

    build: Path | str
    baseline: bool = False
    threads: int | None = None
    prepack: bool = False
    backend: BackendName | None = None
    max_gen_toks: int = 256

    def __post_init__(self) -> None:
        self._require("baseline", bool, "True or False")
        self._require("threads", int | None, "a whole number")
        self._require("prepack", bool, "True or False")
        self._require("backend", str | None, "onnxruntime, onnxruntime-cuda or tensorrt")
        self._require("max_gen_toks", int, "a whole number")

    def _require(self, name: str, kind: type | UnionType, allowed: str) -> None:
        value = getattr(self, name)
        if not isinstance(value, kind):
            raise UserError(f"{name}={value} cannot be used", f"{name} must be {allowed}")

    @property
    def directory(self) -> Path:
        """The build's path; the harness passes a name of digits as a number."""
        return Path(str(self.build))


def model_args(given: Mapping[str, Any]) -> ModelArgs:
    """The checked arguments. Raises UserError."""
    known = [field.name for field in fields(ModelArgs)]
    if unknown := sorted(given.keys() - set(known)):
        raise UserError(
            f"--model_args has unknown names: {', '.join(unknown)}",
            f"use {', '.join(known)}; pass what a task needs in --metadata",
        )
    if "build" not in given:
        raise UserError("--model_args has no build", "pass --model_args build=DIR")
    return ModelArgs(**given)


LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""The harness's names for the number of tokens to generate."""

KNOWN = ("until", *LENGTHS, "do_sample", "temperature", "top_p", "top_k", "seed", "num_beams")


def sampling_params(arguments: Mapping[str, Any], max_gen_toks: int) -> SamplingParams:
    """The SamplingParams of one request, `max_gen_toks` long by default. Raises UserError."""
    given = {name: value for name, value in arguments.items() if value is not None}
    if unknown := sorted(given.keys() - set(KNOWN)):
        raise UserError(
            f"unknown generation arguments: {', '.join(unknown)}",
            f"use {', '.join(KNOWN)}",
        )
    if given.get("num_beams", 1) != 1:
        raise UserError(
            f"num_beams {given['num_beams']!r} asks for beam search, which builds do not have",
            "use num_beams 1",
        )
    sampling = {name: given[name] for name in ("top_p", "top_k", "seed") if name in given}
    temperature = _temperature(given)
    if temperature and "seed" not in given:
        # The harness's --seed sets this generator, so that its runs can be repeated.
        sampling["seed"] = random.getrandbits(32)
    return SamplingParams(
        max_tokens=_max_tokens(given, max_gen_toks),
        temperature=temperature,
        stop=_texts(given.get("until", ())),
        **sampling,
    )


def _temperature(given: Mapping[str, Any]) -> Any:
    """do_sample decides where it is given: some tasks have `temperature: 1, do_sample: false`."""
    temperature = given.get("temperature", 1.0 if given.get("do_sample") else 0.0)
    return temperature if given.get("do_sample", True) else 0.0


def _max_tokens(given: Mapping[str, Any], default: int) -> Any:
    lengths = {name: given[name] for name in LENGTHS if name in given}
    if len(set(lengths.values())) > 1:
        raise UserError(
            f"the length is given more than once: {lengths}", f"give only {next(iter(lengths))}"
        )
    return next(iter(lengths.values()), default)


def _texts(until: Any) -> Any:
    """Stop texts without the empty ones, which some tasks have."""
    if isinstance(until, str):
        until = [until]
    return tuple(text for text in until if text != "") if isinstance(until, list | tuple) else until
