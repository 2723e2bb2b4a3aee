"""Compiles the launchers into a library that `binding` loads: for a GPU, or over the emulator.

The plugins themselves are built by CMakeLists.txt.
"""

import subprocess
from pathlib import Path

HOME = Path(__file__).resolve().parent
EMULATOR = HOME / "emulator"

_CUDA = [HOME / "launchers" / name for name in ("select.cu", "gather.cu")]
_C_API = HOME / "launchers" / "c_api.cpp"
_WARNINGS = ["-Wall", "-Wextra", "-Werror"]


def gpu_command(out: Path, architecture: str, nvcc: str = "nvcc", debug: bool = False) -> list[str]:
    """Nvcc's command for one GPU, as "90". debug: with line numbers, for compute-sanitizer."""
    host = ",".join([*_WARNINGS, "-fPIC", "-fvisibility=hidden"])
    flags = [*"-std=c++17 -O3 -shared -Werror all-warnings".split(), "-Xcompiler", host]
    target = ["-gencode", f"arch=compute_{architecture},code=sm_{architecture}"]
    lines = ["-lineinfo"] if debug else []
    sources = [str(path) for path in (*_CUDA, _C_API)]
    return [nvcc, *flags, *target, *lines, f"-I{HOME}", *sources, "-o", str(out)]


def emulator_command(out: Path, compiler: str = "g++") -> list[str]:
    """The C++ compiler's command for the same sources over the emulator."""
    flags = [*"-std=c++17 -O2 -shared -fPIC".split(), *_WARNINGS, "-Wno-unknown-pragmas"]
    # The emulator switches between stacks, which a fortified longjmp refuses.
    flags += ["-U_FORTIFY_SOURCE", "-fno-strict-aliasing"]
    sources = [str(path) for path in (*_CUDA, _C_API, EMULATOR / "emulator.cpp")]
    return [compiler, *flags, f"-I{HOME}", f"-I{EMULATOR}", "-x", "c++", *sources, "-o", str(out)]


def build(command: list[str]) -> None:
    """Run a compiler. Raises RuntimeError with its output if it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
