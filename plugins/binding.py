"""Compiles the kernels' launchers into a library, and calls them by ctypes.

The library is for a GPU, or over the emulator; CMakeLists.txt builds the plugins themselves. The
structures are those of kernels/problem.h. Allocates no memory: callers pass addresses on the GPU
or, with the emulator's library, on the host.
"""

import ctypes
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

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


def compile_library(command: list[str]) -> None:
    """Run a compiler. Raises RuntimeError with its output if it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


ELEMENT_TYPES = {"float32": 0, "float16": 1, "bfloat16": 2}

_int, _pointer = ctypes.c_int32, ctypes.c_void_p


def _fields(names: str, kind: type) -> list[tuple[str, type]]:
    return [(name, kind) for name in names.split()]


class SelectProblem(ctypes.Structure):
    """SnapKVSelect's shapes and attributes. softcap: of the scaled scores; 0: none."""

    _fields_: ClassVar[Sequence[tuple[str, type]]] = [
        *_fields("kv_heads group window T head_dim sink recent K pool_kernel", _int),
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
        *_fields("causal squares pool_max group_max", ctypes.c_bool),
    ]


class SelectTensors(ctypes.Structure):
    """Addresses: query [H,W,D], key [Hkv,T,D], prompt_length int64 [1], positions int64 [Hkv,K]."""

    _fields_: ClassVar[Sequence[tuple[str, type]]] = _fields(
        "query key prompt_length positions", _pointer
    )


class GatherProblem(ctypes.Structure):
    """SnapStreamGather's shapes and attributes."""

    _fields_: ClassVar[Sequence[tuple[str, type]]] = _fields(
        "kv_heads T head_dim sink recent K spare", _int
    )


class GatherTensors(ctypes.Structure):
    """Addresses, in the order of the function's inputs and outputs."""

    _fields_: ClassVar[Sequence[tuple[str, type]]] = _fields(
        "key value prompt_length positions present_key present_value", _pointer
    )


def options(softmax: str, vote: str, pool: str, group: str) -> dict[str, bool]:
    """The vote's options by name (snapexport.graphs.functions.vote) as fields of SelectProblem."""
    return {
        "causal": {"candidates": False, "causal": True}[softmax],
        "squares": {"sum": False, "sum-squares": True}[vote],
        "pool_max": {"avg": False, "max": True}[pool],
        "group_max": {"mean": False, "sum": False, "max": True}[group],
    }


class Launchers:
    """A loaded library of launchers. dtype: one of ELEMENT_TYPES; stream: a CUDA stream or 0."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        self._library.snapexport_select_workspace.restype = ctypes.c_size_t

    def select_refusal(self, problem: SelectProblem, dtype: str) -> str:
        """Why the kernels do not take the problem, or nothing."""
        return self._refusal("snapexport_select_refusal", problem, dtype)

    def gather_refusal(self, problem: GatherProblem, dtype: str) -> str:
        """Why the kernels do not take the problem, or nothing."""
        return self._refusal("snapexport_gather_refusal", problem, dtype)

    def workspace_bytes(self, problem: SelectProblem, dtype: str) -> int:
        """Bytes of `select`'s workspace."""
        kind = ELEMENT_TYPES[dtype]
        size = self._library.snapexport_select_workspace(ctypes.byref(problem), kind)
        return int(size)

    def select(
        self,
        problem: SelectProblem,
        dtype: str,
        tensors: SelectTensors,
        workspace: int,
        stream: int = 0,
    ) -> None:
        """Enqueue SnapKVSelect."""
        arguments = (ctypes.byref(problem), ELEMENT_TYPES[dtype], ctypes.byref(tensors))
        run = self._library.snapexport_select
        _require(run(*arguments, _pointer(workspace), _pointer(stream)), "SnapKVSelect")

    def gather(
        self, problem: GatherProblem, dtype: str, tensors: GatherTensors, stream: int = 0
    ) -> None:
        """Enqueue SnapStreamGather."""
        arguments = (ctypes.byref(problem), ELEMENT_TYPES[dtype], ctypes.byref(tensors))
        run = self._library.snapexport_gather
        _require(run(*arguments, _pointer(stream)), "SnapStreamGather")

    def _refusal(self, function: str, problem: ctypes.Structure, dtype: str) -> str:
        message = ctypes.create_string_buffer(256)
        kind = ctypes.c_int(ELEMENT_TYPES[dtype])
        size = ctypes.c_size_t(len(message))
        getattr(self._library, function)(ctypes.byref(problem), kind, message, size)
        return message.value.decode()


def _require(status: int, operator: str) -> None:
    if status:
        raise RuntimeError(f"{operator}: CUDA error {status} at launch")
