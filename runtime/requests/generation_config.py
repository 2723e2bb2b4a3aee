"""Reads the sampling that a checkpoint recommends from its generation_config.json.

The meaning is transformers': nothing is sampled unless `do_sample` is true.
"""

import os
from pathlib import Path

from snapexport.errors import UserError
from snapexport.files.untrusted import CONFIG_BYTES, read_object
from snapexport.runtime.requests.request import SamplingParams

CONFIG = "generation_config.json"
FIELDS = ("temperature", "top_p", "top_k")

_HINT = "copy it from the checkpoint again"


def recommended_sampling(directory: Path) -> dict[str, float]:
    """Fields of SamplingParams that a build's checkpoint gives; none: greedy. Raises UserError."""
    path = directory / CONFIG
    if not os.path.lexists(path):
        return {}
    config = read_object(path, CONFIG_BYTES, _HINT, links=False)
    if config.get("do_sample") is not True:
        return {}
    given = {name: config[name] for name in FIELDS if config.get(name) is not None}
    given.setdefault("temperature", 1.0)
    try:
        SamplingParams(**given)
    except UserError as error:
        raise UserError(f"{path}: {error.message}", error.hint) from None
    return given
