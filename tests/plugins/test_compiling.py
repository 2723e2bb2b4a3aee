"""The kernels compile for a GPU without warnings, and each layer includes only lower ones."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from snapexport.plugins import binding
from snapexport.plugins.binding import Launchers, SelectProblem
from tests.plugins.compiled import Libraries
from tests.plugins.emulated import Emulated
from tests.plugins.loud import skip_loudly

EXPORTS = {
    "snapexport_select",
    "snapexport_select_refusal",
    "snapexport_select_workspace",
    "snapexport_gather",
    "snapexport_gather_refusal",
}


@pytest.fixture(scope="module")
def gpu_library(libraries: Libraries) -> Path:
    nvcc = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    if nvcc is None:
        skip_loudly("no nvcc: NO KERNEL WAS COMPILED FOR A GPU")
    return libraries.make("launchers", lambda out: binding.gpu_command(out, "90", nvcc))


@pytest.mark.slow
def test_gpu_library_exports_the_c_interface(gpu_library: Path) -> None:
    command = ["nm", "-D", "--defined-only", str(gpu_library)]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    names = {line.split()[-1] for line in listed.splitlines() if " T " in line}
    assert {name for name in names if name.startswith("snapexport")} == EXPORTS


@pytest.mark.slow
def test_gpu_library_loads_without_a_gpu_and_needs_the_emulators_workspace(
    gpu_library: Path, emulated: Emulated
) -> None:
    p = SelectProblem(8, 4, 32, 131072, 128, 4, 1024, 4096, 7, 0.1)
    sizes = [
        one.workspace_bytes(p, "bfloat16") for one in (Launchers(gpu_library), emulated.launchers)
    ]
    assert sizes[0] == sizes[1]
    # Votes of each query head and little else: never [H, W, T] (512 MiB here).
    assert sizes[0] < 48 * 2**20


@pytest.mark.parametrize("layer", ["kernels", "launchers"])
def test_plugin_source_layer_includes_only_lower_layers(layer: str) -> None:
    allowed = {
        "kernels": {"kernels", "emulator.h", "cuda_runtime.h"},
        "launchers": {"kernels", "launchers"},
    }[layer]
    for source in (binding.HOME / layer).iterdir():
        for name in re.findall(r'#include [<"]([^>"]+)[>"]', source.read_text()):
            is_standard = re.fullmatch(r"[a-z_]+", name)
            assert is_standard or name.split("/")[0] in allowed, f"{source.name}: {name}"


@pytest.mark.slow
def test_cmake_without_tensorrt_headers_says_that_plugins_are_left_out(tmp_path: Path) -> None:
    if not shutil.which("cmake") or not shutil.which("nvcc"):
        skip_loudly("no cmake or no nvcc: CMakeLists.txt was NOT RUN")
    command = ["cmake", "-S", str(binding.HOME), "-B", str(tmp_path)]
    done = subprocess.run(
        [*command, "-DCMAKE_CUDA_ARCHITECTURES=90-real"], capture_output=True, text=True, check=True
    )
    assert "NO TENSORRT PLUGINS WILL BE BUILT" in done.stderr
