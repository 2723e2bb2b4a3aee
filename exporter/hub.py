"""Where a `--model` argument leads: a local directory always, the Hugging Face Hub by its id."""

import re
from pathlib import Path

from snapexport.contract.errors import UserError, first_line

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
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
