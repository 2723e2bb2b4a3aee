"""The timing cache: what a builder has measured already, kept between builds in a file."""

from pathlib import Path

import tensorrt as trt

from snapexport.contract.errors import UserError
from snapexport.contract.files import write_whole


def attach_timing_cache(config: trt.IBuilderConfig, path: Path, *, ours: bool) -> None:
    """Let `config` use and extend what `path` holds.

    A cache of another GPU or another TensorRT does not fit. If it is ours we begin a new one;
    somebody else's is not to be replaced. Raises UserError.
    """
    if not path.is_file() or not _attached(config, path.read_bytes()):
        if path.is_file() and not ours:
            raise UserError(
                f"--timing-cache {path} is not of this GPU and TensorRT {trt.__version__}",
                "name a file that does not exist yet: it is made",
            )
        _attached(config, b"")


def _attached(config: trt.IBuilderConfig, content: bytes) -> bool:
    cache = config.create_timing_cache(content)
    return cache is not None and config.set_timing_cache(cache, ignore_mismatch=False)


def save_timing_cache(config: trt.IBuilderConfig, path: Path) -> None:
    """Write what `config` knows by now, whole or not at all."""
    cache = config.get_timing_cache()
    if cache is None:
        return
    write_whole(path, memoryview(cache.serialize()))
