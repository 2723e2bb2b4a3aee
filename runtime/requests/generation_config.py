"""Reads the sampling that a checkpoint recommends from its generation_config.json.

`generate` of transformers samples nothing unless `do_sample` is true. vLLM's server samples anyway,
as OpenAI's API does, and takes the other values as they are.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from snapexport.errors import UserError
from snapexport.files.untrusted import CONFIG_BYTES, read_object
from snapexport.runtime.requests.request import SamplingParams

CONFIG = "generation_config.json"
FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")

_HINT = "copy it from the checkpoint again"


def recommended_sampling(directory: Path) -> dict[str, float]:
    """Fields of SamplingParams as transformers takes them; none: greedy. Raises UserError."""
    config = _config(directory)
    if config.get("do_sample") is not True:
        return {}
    return {"temperature": 1.0} | _fields(directory, config)


def served_sampling(directory: Path) -> dict[str, float]:
    """Fields of SamplingParams as vLLM takes them, for a server's requests. Raises UserError."""
    return _fields(directory, _config(directory))


def _config(directory: Path) -> dict[str, Any]:
    path = directory / CONFIG
    if not os.path.lexists(path):
        return {}
    return read_object(path, CONFIG_BYTES, _HINT, links=False, lenient=True)


def _fields(directory: Path, config: Mapping[str, Any]) -> dict[str, float]:
    given = {name: config[name] for name in FIELDS if config.get(name) is not None}
    try:
        SamplingParams(**given)
    except UserError as error:
        raise UserError(f"{directory / CONFIG}: {error.message}", error.hint) from None
    return given
