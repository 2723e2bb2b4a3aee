"""Memory that is measured in a process of its own is the build's alone."""

from collections.abc import Callable

import pytest

from tests.runtime.processes import run_python
from tools.studies.speed import memory, naive

HEAVY = "torch transformers onnx onnx_ir onnxscript matplotlib"


@pytest.mark.parametrize("measured", [memory.peak, memory.prepacked, naive.naive_step])
def test_a_process_that_measures_memory_loads_no_export_library(
    measured: Callable[..., object],
) -> None:
    loaded = f"[name for name in {HEAVY.split()} if name in sys.modules]"
    assert run_python(f"import sys, {measured.__module__}\nprint({loaded})").stdout == "[]\n"
