"""Resolves `--model` to a local directory, and reads the hashes that the Hub left beside files."""

import re
from pathlib import Path

from snapexport.contract.errors import UserError, first_line

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_SHA256 = re.compile("[0-9a-f]{64}")
_METADATA = ".cache/huggingface/download"
_WANTED = ["*.json", "*.safetensors"]
_UNWANTED = ["consolidated*", "*/*"]
"""A second copy of the weights in the vendor's own layout, and whatever is in subfolders."""


def resolve(model: str) -> Path:
    """Directory of the checkpoint; a Hub id is fetched into the Hub's own cache first."""
    path = Path(model).expanduser()
    if path.exists() or model.startswith((".", "/", "~")) or not _HUB_ID.fullmatch(model):
        return path
    return _download(model)


def _download(model: str) -> Path:
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError

    try:
        directory = huggingface_hub.snapshot_download(
            model, allow_patterns=_WANTED, ignore_patterns=_UNWANTED
        )
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise UserError(
            f"'{model}' is no local directory, and the Hub did not give it: {first_line(error)}",
            "check the name, the network and `hf auth login`, or pass a local directory",
        ) from None
    return Path(directory)


def recorded_sha256(file: Path) -> str | None:
    """The hash that the Hub gave a file: the name of its blob, or the etag kept beside it."""
    if _SHA256.fullmatch(file.name):
        return file.name
    metadata = file.parent / _METADATA / f"{file.name}.metadata"
    lines = metadata.read_text().split() if metadata.is_file() else []
    if len(lines) != 3 or not _SHA256.fullmatch(lines[1]):
        return None
    # commit, etag, time of the download: a file written later is no longer what was downloaded
    return lines[1] if file.stat().st_mtime <= float(lines[2]) + 1 else None
