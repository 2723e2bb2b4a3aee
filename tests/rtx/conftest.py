"""A small build for TensorRT for RTX, which tests read."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from snapexport.contract.build_directory import Build

SMALL: dict[str, Any] = {"L_max": 64, "L_recent": 12, "K": 8, "L_obs": 4, "prefill_chunk": 24}


@pytest.fixture(scope="session")
def made(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> "Build":
    """In fp16, with the baseline's graphs."""
    from tests.builds import build

    options = SMALL | {"target": "tensorrt-rtx", "dtype": "fp16", "batch": 4, "baseline": True}
    return build(checkpoint, tmp_path_factory.mktemp("rtx") / "b", **options)
