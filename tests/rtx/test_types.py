"""Our calls of TensorRT fit the bindings of TensorRT for RTX too, by mypy."""

from pathlib import Path

from tests.builder.engines.test_types import TENSORRT_CODE, mypy
from tests.fakes.bindings import make_rtx_stubs


def test_tensorrt_calls_type_check_against_the_bindings_for_rtx(tmp_path: Path) -> None:
    assert mypy(make_rtx_stubs(tmp_path), *TENSORRT_CODE) == []
