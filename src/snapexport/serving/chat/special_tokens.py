"""What tokenizer_config.json says: the texts of the special tokens, and perhaps a chat template."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from snapexport.contract.errors import UserError

CONFIG = "tokenizer_config.json"


def read_config(directory: Path) -> dict[str, Any]:
    """The build's tokenizer_config.json; empty where there is none. Raises UserError."""
    path = directory / CONFIG
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_bytes())
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}", "copy it from the checkpoint") from None
    if not isinstance(config, dict):
        raise UserError(f"{path} does not hold a JSON object", "copy it from the checkpoint")
    return config


def special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """The texts of `bos_token` and its kind: each is a text, or an object with `content`."""
    named = {key: value for key, value in config.items() if key.endswith("_token")}
    texts = {key: _content(value) for key, value in named.items()}
    return {key: text for key, text in texts.items() if isinstance(text, str)}


def _content(value: Any) -> Any:
    return value.get("content") if isinstance(value, dict) else value
