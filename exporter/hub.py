"""Where a `--model` argument leads: a local directory always, the Hugging Face Hub by its id."""

import re
from pathlib import Path

from snapexport.contract.errors import UserError

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_WANTED = ["*.json", "*.safetensors", "*.jinja"]


def resolve(model: str) -> Path:
    """Directory of the checkpoint; a Hub id is fetched into the Hub's own cache first."""
    path = Path(model).expanduser()
    if path.exists() or not _HUB_ID.fullmatch(model):
        return path
    return _download(model)


def _download(model: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return Path(snapshot_download(model, allow_patterns=_WANTED))
    except (HfHubHTTPError, OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"'{model}' is no local directory, and the Hub did not give it: {reason}",
            "check the name, the network and `hf auth login`, or pass a local directory",
        ) from None
