"""Looks at a checkpoint for what would refuse it anyway, before transformers is loaded.

Reads names, config.json and headers. What it does not understand it lets pass.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from snapexport.errors import needs_extra
from snapexport.exporter.read import folders, hub_config, open_checkpoint
from snapexport.exporter.read.checkpoint import read_config
from snapexport.exporter.read.config_fields import longest_sequence
from snapexport.exporter.read.shards import read_shards

_LIMITS = ("max_position_embeddings", "n_positions")
"""Names of the position limit; the second is GPT-2's and its kin's."""


def look(model: str, *, needs_weights: bool) -> int | None:
    """The position limit of a model, or None where only transformers knows.

    Raises UserError. Of a model of the Hub only config.json is fetched.
    """
    path = hub_config(model)
    if path.is_file() or (path.suffix == folders.GGUF and not path.is_dir()):
        return _limit_of_gguf(path)
    if not path.is_dir():
        open_checkpoint(path)  # which says what is wrong
    folders.require_files(path)
    is_local = path == Path(model).expanduser()
    if not (path / folders.CONFIG).is_file():
        if not is_local:
            return None  # a repository of other files
        raise folders.without_config(path)
    config = read_config(path)
    if needs_weights and is_local:
        read_shards(path)
    text = config.get("text_config")
    return _limit(text if isinstance(text, dict) else config)


def _limit(config: Mapping[str, Any]) -> int | None:
    limit = next((config[name] for name in _LIMITS if name in config), None)
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if type(limit) is not int or not isinstance(rope, dict):
        return None
    ropes = [one for one in (rope, *rope.values()) if isinstance(one, dict)]
    try:
        return longest_sequence(limit, ropes)
    except (KeyError, TypeError, ValueError):
        return None  # a RoPE that is refused later


def _limit_of_gguf(path: Path) -> int | None:
    folders.require_files(path)
    folders.require_gguf(path)
    with needs_extra("build"):
        from snapexport.exporter.read.gguf import config, read_whole, tensors
        from snapexport.exporter.read.gguf.header import own_metadata

        header = read_whole(path, tensors.block_sizes())
    family = config.record_of(header)
    assert family.gguf is not None
    own = own_metadata(header, family.gguf.name)
    rope = config.rope_scaling(own)
    return _limit({_LIMITS[0]: own.get("context_length"), "rope_scaling": rope})
