"""Resolves `--model` to a local directory, and reads the hashes that the Hub left beside files."""

import re
from contextlib import suppress
from pathlib import Path

from snapexport.errors import UserError, first_line
from snapexport.exporter.folders import GGUF, require_of_hub
from snapexport.exporter.text_files import CONVERTIBLE, READ
from snapexport.files.untrusted import read_text

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_SHA256 = re.compile("[0-9a-f]{64}")
_TIME = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?")
_METADATA_BYTES = 1 << 12
_METADATA = ".cache/huggingface/download"
WANTED = [*READ, *CONVERTIBLE, "*.json", "*.safetensors"]
UNWANTED = ["consolidated*", "*/*"]
"""The vendor's second copy of the weights, and all subfolders."""
IN_FOLDERS = [name for name in READ if "/" in name]


def resolve(model: str) -> Path:
    """The checkpoint's directory or GGUF file. A Hub id is downloaded to the Hub's cache first.

    Raises UserError.
    """
    if not model:
        raise UserError("--model is empty", "name a folder, a GGUF file, or a model of the Hub")
    path = Path(model).expanduser()
    local = path.exists() or model.startswith((".", "/", "~")) or path.suffix == GGUF
    return path if local or not _HUB_ID.fullmatch(model) else _download(model)


def _download(model: str) -> Path:
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError

    download = huggingface_hub.snapshot_download
    try:
        # A snapshot's folder is named by its commit, so that both are of one.
        commit = Path(download(model, allow_patterns=IN_FOLDERS)).name
        directory = Path(
            download(model, revision=commit, allow_patterns=WANTED, ignore_patterns=UNWANTED)
        )
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise UserError(
            f"'{model}' is no local directory, and its download failed: {first_line(error)}",
            "check the name, the network and `hf auth login`, or pass a local directory",
        ) from None
    if not any(directory.glob("*.safetensors")):
        require_of_hub(model, directory, _files_of(model, commit))
    return directory


def _files_of(model: str, commit: str) -> list[str]:
    """All files of a repository; none where the Hub can't be asked."""
    import huggingface_hub

    with suppress(Exception):  # it is a help, and not needed
        return list(huggingface_hub.list_repo_files(model, revision=commit))
    return []


def recorded_sha256(file: Path) -> str | None:
    """The file's hash from the Hub: the name of its blob, or the etag beside it."""
    if _SHA256.fullmatch(file.name):
        return file.name
    metadata = file.parent / _METADATA / f"{file.name}.metadata"
    try:
        lines = read_text(metadata, _METADATA_BYTES, "").split()
    except (UserError, OSError):
        return None  # it is a help, and not needed
    if len(lines) != 3 or not _SHA256.fullmatch(lines[1]) or not _TIME.fullmatch(lines[2]):
        return None
    # The lines are commit, etag and time of the download. A later file has other content.
    return lines[1] if file.stat().st_mtime <= float(lines[2]) + 1 else None
