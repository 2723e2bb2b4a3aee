"""Reads a build's chat template and its special tokens from the files of the checkpoint.

Needs no jinja2.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from snapexport.files.untrusted import CONFIG_BYTES, TEMPLATE_BYTES, read_object, read_text

CONFIG = "tokenizer_config.json"
"""The special tokens' texts, and an older checkpoint's chat template."""
FILE = "chat_template.jinja"
"""The chat template of newer checkpoints, outside of tokenizer_config.json."""
DEFAULT, TOOL_USE = "default", "tool_use"
"""Names of templates: the second is taken in place of the first where tools are given."""
TOOL_USE_FILE = f"additional_chat_templates/{TOOL_USE}.jinja"
COPY = f"copy {FILE} (or the {CONFIG} that holds it) from the checkpoint"

GIVEN = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
"""Names defined for every template, beside the special tokens. No option can have one."""

_HINT = "copy it from the checkpoint"


def has_template(directory: Path) -> bool:
    """Whether the build has a chat template. Raises UserError for files that cannot be read."""
    return read_source(directory, read_config(directory)) is not None


def read_source(directory: Path, config: Mapping[str, Any]) -> str | None:
    """The template's text; `config` is the build's tokenizer_config.json. Raises UserError."""
    path = directory / FILE
    if os.path.lexists(path):
        return read_text(path, TEMPLATE_BYTES, _HINT, links=False)
    return named_template(config)


def read_tool_use(directory: Path, config: Mapping[str, Any]) -> str | None:
    """The text of the template for chats with tools; None: the other one's. Raises UserError."""
    path = directory / TOOL_USE_FILE
    if os.path.lexists(path):
        return read_text(path, TEMPLATE_BYTES, _HINT, links=False)
    if os.path.lexists(directory / FILE):  # it overrules tokenizer_config.json
        return None
    return named_template(config, TOOL_USE)


def read_config(directory: Path) -> dict[str, Any]:
    """The build's tokenizer_config.json; empty if it is missing. Raises UserError."""
    path = directory / CONFIG
    if not os.path.lexists(path):
        return {}
    return read_object(path, CONFIG_BYTES, _HINT, links=False, lenient=True)


def special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Name -> text of `bos_token` and the like, each a text or an object with `content`."""
    texts = {
        key: value.get("content") if isinstance(value, dict) else value
        for key, value in config.items()
        if key.endswith("_token")
    }
    return {key: text for key, text in texts.items() if isinstance(text, str)}


def named_template(config: Mapping[str, Any], name: str = DEFAULT) -> str | None:
    """The template of a name in a tokenizer_config.json, where a single one is the default."""
    value = config.get("chat_template")
    if isinstance(value, dict):
        value = [{"name": key, "template": text} for key, text in value.items()]
    if not isinstance(value, list):
        return value if isinstance(value, str) and name == DEFAULT else None
    named = [entry.get("template") for entry in value if _is_named(entry, name)]
    return named[-1] if named and isinstance(named[-1], str) else None


def _is_named(entry: object, name: str) -> bool:
    return isinstance(entry, dict) and entry.get("name") == name
