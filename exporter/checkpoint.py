"""A checkpoint directory as it lies on the disk: its config, and where each tensor's bytes are.

Reads headers only, never a weight.
"""

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snapexport.contract.errors import UserError

CONFIG = "config.json"
SINGLE_FILE = "model.safetensors"
SHARD_INDEX = "model.safetensors.index.json"
_METADATA = "__metadata__"


@dataclass(frozen=True, slots=True)
class TensorSpan:
    """One tensor inside a .safetensors file. `dtype` as safetensors spells it: F32, F16, BF16."""

    file: Path
    offset: int
    nbytes: int
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Checkpoint:
    """A local checkpoint. `files` and the spans' files are resolved: no symlinks are left."""

    directory: Path
    config: dict[str, Any]
    tensors: dict[str, TensorSpan]

    @classmethod
    def open(cls, directory: Path) -> "Checkpoint":
        """Read config and tensor headers. Raises UserError for what is missing or broken."""
        if not directory.is_dir():
            raise UserError(
                f"no such directory: {directory}",
                "--model takes a checkpoint directory or a Hugging Face Hub id (owner/name)",
            )
        config = _read_json(
            directory / CONFIG, f"{directory} is not a checkpoint: it has no {CONFIG}"
        )
        tensors: dict[str, TensorSpan] = {}
        for file in _weight_files(directory):
            tensors |= read_header(file)
        return cls(directory, config, tensors)

    @property
    def files(self) -> list[Path]:
        return sorted({span.file for span in self.tensors.values()})


def read_header(file: Path) -> dict[str, TensorSpan]:
    """Spans of all the tensors in one .safetensors file, checked against the file's size."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        prefix = stream.read(8)
        (length,) = struct.unpack("<Q", prefix) if len(prefix) == 8 else (size,)
        if 8 + length > size:
            raise _truncated(file)
        header = _parse_header(file, stream.read(length))
    start = 8 + length
    header.pop(_METADATA, None)
    spans = {name: _span(file, start, entry) for name, entry in header.items()}
    if any(span.offset + span.nbytes > size for span in spans.values()):
        raise _truncated(file)
    return spans


def _span(file: Path, start: int, entry: dict[str, Any]) -> TensorSpan:
    begin, end = entry["data_offsets"]
    return TensorSpan(file, start + begin, end - begin, entry["dtype"], tuple(entry["shape"]))


def _parse_header(file: Path, raw: bytes) -> dict[str, dict[str, Any]]:
    try:
        header: dict[str, dict[str, Any]] = json.loads(raw)
    except ValueError:
        raise UserError(f"{file} has no readable safetensors header", _download_again) from None
    return header


_download_again = "download the checkpoint again: the file is damaged or incomplete"


def _truncated(file: Path) -> UserError:
    return UserError(f"{file} is truncated: its header names bytes past its end", _download_again)


def _weight_files(directory: Path) -> list[Path]:
    if (directory / SHARD_INDEX).is_file():
        index = _read_json(directory / SHARD_INDEX, "unreadable shard index")
        names = sorted(set(index["weight_map"].values()))
    else:
        names = [SINGLE_FILE]
    for name in names:
        if not (directory / name).is_file():
            raise UserError(f"{directory} has no {name}", _weights_hint(directory))
    return [(directory / name).resolve() for name in names]


def _weights_hint(directory: Path) -> str:
    if any(directory.glob("*.bin")):
        return "only safetensors weights are read: save the model with `save_pretrained` first"
    return "a checkpoint holds model.safetensors, or shards and model.safetensors.index.json"


def _read_json(path: Path, missing: str) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise UserError(missing, "point --model at a directory made by `save_pretrained`") from None
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}", "download the checkpoint again") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} does not hold a JSON object", "download the checkpoint again")
    return content
