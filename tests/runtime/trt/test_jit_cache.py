"""Kernels compiled for an RTX GPU are kept on disk. No GPU: the library's objects are fakes."""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from snapexport.runtime.trt.engines import JitCache


class FakeEngine:
    """fits: whether the library takes a cache that is read."""

    def __init__(self, fits: bool = True) -> None:
        self.read: list[bytes] = []
        self.given: list[Any] = []
        self._fits = fits

    def create_runtime_config(self) -> Any:
        cache = SimpleNamespace(deserialize=self._deserialize, serialize=lambda: b"kernels")
        return SimpleNamespace(
            set_execution_context_allocation_strategy=self.given.append,
            create_runtime_cache=lambda: cache,
            set_runtime_cache=self.given.append,
        )

    def create_execution_context(self, config: Any) -> str:
        return "a context"

    def _deserialize(self, content: bytes) -> bool:
        self.read.append(content)
        return self._fits


def test_kernels_of_a_first_load_are_read_by_the_next(tmp_path: Path) -> None:
    first, second = FakeEngine(), FakeEngine()
    for engine in (first, second):
        cache = JitCache(tmp_path / "decode.engine", "NVIDIA RTX 4090")
        assert cache.context(engine, "a strategy") == "a context"  # type: ignore[arg-type]
        assert engine.given[0] == "a strategy" and len(engine.given) == 2
        cache.save()
    assert (first.read, second.read) == ([], [b"kernels"])
    assert cache.path == tmp_path / "decode.nvidia_rtx_4090.jit_cache"


def test_kernels_of_another_driver_are_compiled_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = JitCache(tmp_path / "decode.engine", "RTX")
    cache.path.write_bytes(b"old")
    with caplog.at_level(logging.WARNING):
        cache.context(FakeEngine(fits=False), "s")  # type: ignore[arg-type]
    assert "compiling again" in caplog.text
    cache.save()
    assert cache.path.read_bytes() == b"kernels"


def test_a_build_that_cannot_be_written_to_keeps_no_kernels(tmp_path: Path) -> None:
    cache = JitCache(tmp_path / "missing" / "decode.engine", "RTX")
    cache.context(FakeEngine(), "s")  # type: ignore[arg-type]
    cache.save()
    assert not cache.path.exists()
