"""Opens what `--model` names: a folder, a GGUF file or a model of the Hugging Face Hub.

Reads headers, configs and tokenizers, never a weight.
"""

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from snapexport.errors import UserError, first_line
from snapexport.exporter.read.checkpoint import Checkpoint
from snapexport.exporter.read.folders import (
    ADAPTER,
    ADAPTER_WEIGHTS,
    CONFIG,
    CONVERTIBLE,
    GGUF,
    READ,
    names_of,
    require_files,
    require_gguf,
    require_of_hub,
)
from snapexport.exporter.read.gguf import open_gguf
from snapexport.exporter.read.unfinished import error_of, find_unfinished
from snapexport.files.nearby import did_you_mean, near

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
WANTED = [*READ, *CONVERTIBLE, "*.json", "*.safetensors"]
UNWANTED = ["consolidated*", "*/*"]
"""The vendor's second copy of the weights, and all subfolders."""
IN_FOLDERS = [name for name in READ if "/" in name]


def local_path(model: str) -> Path:
    """The checkpoint's directory or GGUF file. A Hub id is downloaded to the Hub's cache first.

    Raises UserError.
    """
    return _local(model) or _download(model)


def hub_config(model: str) -> Path:
    """Find the model as `local_path` does, but download only config.json of a Hub id."""
    return _local(model) or _fetch(model, allow_patterns=[CONFIG])


def _local(model: str) -> Path | None:
    """The path; None for a Hub id."""
    if not model:
        raise UserError("--model is empty", "name a folder, a GGUF file, or a model of the Hub")
    path = Path(model).expanduser()
    local = path.exists() or model.startswith((".", "/", "~")) or path.suffix == GGUF
    return path if local or not _HUB_ID.fullmatch(model) else None


def adapter_path(adapter: str) -> Path:
    """The adapter's directory. A Hub id is downloaded to the Hub's cache first."""
    if not adapter:
        raise UserError("--adapter is empty", "name a folder, or an adapter of the Hub")
    path = Path(adapter).expanduser()
    if path.exists() or adapter.startswith((".", "/", "~")) or not _HUB_ID.fullmatch(adapter):
        return path
    return _fetch(adapter, allow_patterns=[ADAPTER, ADAPTER_WEIGHTS])


def _fetch(model: str, **what: Any) -> Path:
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return Path(huggingface_hub.snapshot_download(model, **what))
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise UserError(
            f"'{model}' is not a local directory, and its download failed: {first_line(error)}",
            f"{_similar(Path(model))}check the name, the network and `hf auth login`, or pass a "
            "local directory",
        ) from None


def _download(model: str) -> Path:
    # A snapshot's folder is named by its commit, so that both are of one.
    commit = _fetch(model, allow_patterns=IN_FOLDERS).name
    directory = _fetch(model, revision=commit, allow_patterns=WANTED, ignore_patterns=UNWANTED)
    if not any(directory.glob("*.safetensors")):
        require_of_hub(model, directory, _files_of(model, commit))
    return directory


def _similar(path: Path) -> str:
    return did_you_mean(near(path, CONFIG, GGUF))


def _files_of(model: str, commit: str) -> list[str]:
    """All files of a repository; none where the Hub can't be asked."""
    import huggingface_hub

    with suppress(Exception):  # it is a help, and not needed
        return list(huggingface_hub.list_repo_files(model, revision=commit))
    return []


def open_checkpoint(path: Path) -> Checkpoint:
    """Read configs and tensor headers. Raises UserError for what is missing or broken."""
    if path.is_dir():
        return Checkpoint.of_directory(path)
    part = None if path.exists() else find_unfinished(path.parent, names_of(path.parent), path.name)
    if part and path.name in part.name:
        raise error_of(part, path.name, f"there is no {path}")
    if path.suffix == GGUF or path.is_file():
        require_files(path)
        require_gguf(path)
        return open_gguf(path)
    raise UserError(
        f"no such directory: {path}",
        f"{_similar(path)}--model takes a checkpoint directory, a GGUF file or a Hugging Face Hub "
        "id (owner/name)",
    )


def with_tokenizer(checkpoint: Checkpoint) -> Path:
    """Return the directory with the tokenizer's files; those of a GGUF file are written first."""
    if checkpoint.gguf:
        from snapexport.exporter.read.gguf.tokenizer import write_tokenizer

        write_tokenizer(checkpoint.gguf, checkpoint.directory)
    return checkpoint.directory
