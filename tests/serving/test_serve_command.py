"""`snapexport serve` in one process: the command."""

import subprocess
import sys
from pathlib import Path

from tests.serving.process import serve
from tests.serving.served_command import *  # noqa: F403
from tests.serving.served_command import refused


def test_flags_of_tritons_need_triton(build: Path, tmp_path: Path) -> None:
    error = refused(build, tmp_path, "--grpc-port", "8001")
    assert error == "error: --grpc-port needs --triton\n\nhint: add --triton, or leave it out\n"


def test_a_folder_of_rows_needs_rows_in_memory(build: Path, tmp_path: Path) -> None:
    error = refused(build, tmp_path, "--parked-dir", str(tmp_path / "rows"))
    assert error == "error: --parked-dir needs --parked-rows\n\nhint: add --parked-rows 1 or more\n"


def test_serve_prints_the_addresses_of_one_process(build: Path, tmp_path: Path) -> None:
    with serve(build, tmp_path) as serving:
        assert serving.addresses.keys() == {"model", "openai", "health", "metrics"}
        assert serving.end()[0] == 0


def test_serving_in_process_needs_no_triton_and_no_grpc() -> None:
    code = (
        "import sys\nimport snapexport.serving.serve\n"
        "print([name for name in ('tritonclient', 'grpc', 'torch', 'onnx') if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
