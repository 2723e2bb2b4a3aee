"""Reads the sampling that a checkpoint recommends from its generation_config.json.

The one default of the command line, the server and `LLM`. As in vLLM the values count as they are,
whether `do_sample` is true or not.
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
    """Fields of SamplingParams. Raises UserError.

    `do_sample` without a temperature means transformers' default of 1.
    """
    config = _config(directory)
    usual = {"temperature": 1.0} if config.get("do_sample") is True else {}
    return usual | sampling_of(config, directory)


def _config(directory: Path) -> dict[str, Any]:
    path = directory / CONFIG
    if not os.path.lexists(path):
        return {}
    return read_object(path, CONFIG_BYTES, _HINT, links=False, lenient=True)


def sampling_of(config: Mapping[str, Any], directory: Path) -> dict[str, float]:
    """Fields of SamplingParams that a config has. Raises UserError, with the file's path."""
    given = {name: config[name] for name in FIELDS if config.get(name) is not None}
    if isinstance(top_k := given.get("top_k"), float) and top_k.is_integer():
        given["top_k"] = int(top_k)
    try:
        SamplingParams(**given)
    except UserError as error:
        raise UserError(f"{directory / CONFIG}: {error.message}", error.hint) from None
    return given
