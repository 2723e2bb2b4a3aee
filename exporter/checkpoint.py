"""Opens a checkpoint directory: its configs, and the file and offset of each tensor.

Reads headers only, never a weight.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snapexport.contract.errors import UserError
from snapexport.contract.safetensors import TensorSpan, read_header

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
SINGLE_FILE = "model.safetensors"
SHARD_INDEX = "model.safetensors.index.json"
_DOWNLOAD_AGAIN = "download the checkpoint again: the file is damaged or incomplete"


@dataclass(frozen=True)
class Checkpoint:
    """A local checkpoint. The spans' files are resolved: no symlinks are left."""

    directory: Path
    config: dict[str, Any]
    generation_config: dict[str, Any]
    tensors: dict[str, TensorSpan]

    @classmethod
    def open(cls, directory: Path) -> "Checkpoint":
        """Read configs and tensor headers. Raises UserError for what is missing or broken."""
        if not directory.is_dir():
            raise UserError(
                f"no such directory: {directory}",
                "--model takes a checkpoint directory or a Hugging Face Hub id (owner/name)",
            )
        if not (directory / CONFIG).is_file():
            raise UserError(
                f"{directory} is not a checkpoint: it has no {CONFIG}",
                "point --model at a directory made by `save_pretrained`",
            )
        generation = directory / GENERATION_CONFIG
        tensors: dict[str, TensorSpan] = {}
        for file in _weight_files(directory):
            tensors |= read_header(file)
        return cls(
            directory,
            _read_object(directory / CONFIG),
            _read_object(generation) if generation.is_file() else {},
            tensors,
        )


def _weight_files(directory: Path) -> list[Path]:
    names = _shards(directory / SHARD_INDEX) or [SINGLE_FILE]
    for name in names:
        if not (directory / name).is_file():
            raise UserError(f"{directory} has no {name}", _weights_hint(directory))
    return [(directory / name).resolve() for name in names]


def _shards(index: Path) -> list[str]:
    """Names of the shards; empty without an index."""
    if not index.is_file():
        return []
    weight_map = _read_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(f, str) for f in weight_map.values()):
        raise UserError(f"{index} has no weight_map of file names", _DOWNLOAD_AGAIN)
    return sorted(set(weight_map.values()))


def _weights_hint(directory: Path) -> str:
    if any(directory.glob("*.bin")):
        return "only safetensors weights are read: save the model with `save_pretrained` first"
    return "a checkpoint holds model.safetensors, or shards and model.safetensors.index.json"


def _read_object(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}", _DOWNLOAD_AGAIN) from None
    if not isinstance(content, dict):
        raise UserError(f"{path} does not hold a JSON object", _DOWNLOAD_AGAIN)
    return content
