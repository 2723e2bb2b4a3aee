"""The builds that are measured, all of one checkpoint, whose weights they link.

main             SnapStream, one slot, with the full cache's graphs: context and overhead
snapstream       as many of its slots as the budget holds
full-N           the same for a full cache of N positions
"""

import os
from pathlib import Path
from typing import Any

from snapexport.builder import build
from snapexport.contract.build_directory import Build
from snapexport.contract.manifest import MANIFEST, Manifest

from .setting import Setting

MAIN, SNAPSTREAM = "main", "snapstream"

TOP_TOKENS = 64
"""So that no step waits for the logits of a whole vocabulary to be copied."""


def full(context: int) -> str:
    """The name of a full cache's build."""
    return f"full-{context}"


def wanted(setting: Setting) -> dict[str, dict[str, Any]]:
    """The options of each, by name."""
    shared = {
        "dtype": setting.dtype,
        "prefill_chunk": setting.prefill_chunk,
        "top_tokens": TOP_TOKENS,
        "link_weights": True,
    }
    ours = shared | {
        "L_max": setting.L_max,
        "kv_budget": setting.kv_budget,
        "decode_attention": "valid",
    }
    builds = {
        MAIN: ours | {"batch": 1, "baseline": True},
        SNAPSTREAM: ours | {"batch": setting.slots(setting.kv_budget)},
    }
    for context in setting.fitting:
        slots = setting.slots(context)
        builds[full(context)] = shared | {"policy": "full", "L_max": context, "batch": slots}
    return builds


def make(setting: Setting, folder: Path, checkpoint: Path) -> None:
    """Those that are not there yet. Raises UserError.

    One that came from elsewhere without its weights gets them here.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, options in wanted(setting).items():
        if (folder / name / MANIFEST).is_file():
            _link_weights(folder / name, checkpoint)
        else:
            build(checkpoint, folder / name, **options)


def opened(folder: Path, name: str) -> Build:
    """Raise UserError for one that is not there, or not whole."""
    return Build.open(folder / name)


def _link_weights(directory: Path, checkpoint: Path) -> None:
    for weights in Manifest.read(directory).weights:
        place = directory / weights.file
        if not place.exists():
            place.parent.mkdir(exist_ok=True)
            os.link(checkpoint / place.name, place)
