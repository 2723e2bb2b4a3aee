"""Shows what onnxruntime-gpu would make of a build's graphs, on a machine without a GPU.

Compiles libraries with the names of CUDA's whose functions do nothing, loads onnxruntime-gpu over
them, and opens a session of each graph. Where nodes are placed, and whether decode can be captured,
is decided then, by ONNX Runtime itself; decode is also run, to count the kernels that a captured
step launches. Nothing is calculated: no number that comes out of a graph means anything.

Needs gcc, nm, c++filt and onnxruntime-gpu[cuda] (for CUDA's headers, too), and no driver. Prints
JSON.

    python -m tools.studies.cuda_stub BUILD
"""

import argparse
import ctypes
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from snapexport.contract.build_directory import Build
from snapexport.contract.manifest import TensorSpec
from snapexport.contract.memory import tensor_bytes
from snapexport.errors import UserError, first_line, needs_extra
from snapexport.runtime.engine.backend import Buffer, HostMemory
from snapexport.runtime.engine.bound_graph import allocate

with needs_extra("gpu"):
    from snapexport.runtime.ort.devices import Cuda
    from snapexport.runtime.ort.session import bind, session_options

RUNTIME = "libcudart.so.13"
CUDART = Path(__file__).with_name("cudart.c")
DRIVER = "libcuda.so.1"
EMPTY = ("libcurand.so.10",)
"""Libraries that have to be there, though nothing of them is called."""
_COMPUTES = re.compile(r"^cublas.*(gemm|Gemm|LtMatmul$|Matrix)|Transform$|geam")
ANNOTATIONS = (
    "CUDARTAPI CUDARTAPI_CDECL CUDA_CB __host__ __device__ __global__ __device_builtin__ "
    "__device_builtin_texture_type__ __device_builtin_surface_type__ __cudart_builtin__"
).split()
"""What CUDA's headers write before names, and a C compiler does not know."""


def main(argv: list[str] | None = None) -> int:
    """Compile, then look in a process that finds the stubs first."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.studies.cuda_stub",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("build", type=Path, metavar="BUILD")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    try:
        build = Build.open(arguments.build)
        if arguments.inside:
            print(json.dumps({name: looked_at(build, name) for name in build.manifest.graphs}))
            return 0
        return look(build)
    except UserError as error:
        print(f"error: {error.message}\n\nhint: {error.hint}", file=sys.stderr)
        return 2


def library() -> Path:
    """Where onnxruntime-gpu has its CUDA provider."""
    spec = importlib.util.find_spec("onnxruntime")
    root = Path(spec.origin).parent if spec and spec.origin else Path()
    return root / "capi" / "libonnxruntime_providers_cuda.so"


def look(build: Build) -> int:
    """In a process of its own, whose libraries are the stubs."""
    if not library().is_file():
        raise UserError(
            "onnxruntime-gpu is not installed here",
            "pip install 'onnxruntime-gpu[cuda]' in an environment without onnxruntime",
        )
    with tempfile.TemporaryDirectory() as folder:
        compile_stubs(Path(folder))
        command = [
            sys.executable,
            "-m",
            "tools.studies.cuda_stub",
            str(build.directory),
            "--inside",
        ]
        environment = os.environ | {"LD_LIBRARY_PATH": folder}
        return subprocess.run(command, env=environment).returncode


def compile_stubs(folder: Path) -> None:
    """One library for each whose functions the provider calls."""
    called: dict[str, list[str]] = defaultdict(list)
    for function, where in functions_of(library()):
        called[where].append(function)
    headers = library().parents[2] / "nvidia" / "cu13" / "include"
    if not (headers / "cuda_runtime_api.h").is_file():
        raise UserError("CUDA's headers are not installed", "pip install 'onnxruntime-gpu[cuda]'")
    (folder / "crt").mkdir()
    defined = "".join(f"#define {name}\n" for name in ANNOTATIONS)
    for name in ("__builtin_align__", "__align__"):
        defined += f"#define {name}(n) __attribute__((aligned(n)))\n"
    (folder / "crt" / "host_defines.h").write_text(defined)
    for name in (*called, *EMPTY):
        _compile(folder, name, called[name], [folder, headers])


def functions_of(provider: Path) -> Iterator[tuple[str, str]]:
    """The CUDA functions that it expects of others, and of which library."""
    command = ["nm", "-D", "--undefined-only", str(provider)]
    for line in subprocess.run(command, check=True, capture_output=True, text=True).stdout.split():
        function, _, where = line.partition("@")
        if function.lstrip("_").startswith("cu"):
            yield function, where or DRIVER


def _compile(folder: Path, name: str, functions: list[str], include: list[Path]) -> None:
    by_hand = CUDART if name == RUNTIME else None
    rest, versions = folder / f"{name}.c", folder / f"{name}.map"
    rest.write_text(source(functions, by_hand))
    versions.write_text(f"{name} {{ global: *; }};\n")
    command = ["gcc", "-w", "-shared", "-fPIC", *(f"-I{path}" for path in include)]
    command += [f"-Wl,-soname,{name}", f"-Wl,--version-script={versions}", str(rest)]
    command += [*([str(by_hand)] if by_hand else []), "-o", str(folder / name)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"gcc made no {name}: {done.stderr}", "see what it says of CUDA's headers")


def source(functions: list[str], by_hand: Path | None) -> str:
    """C for those that are not written by hand."""
    written = by_hand.read_text().replace("*", " ") if by_hand else ""
    rest = [name for name in functions if f" {name}(" not in written]
    return "".join(map(_function, rest)) + "int _;\n"


def _function(name: str) -> str:
    """All went well. What creates something gives a handle that is not null."""
    if _COMPUTES.search(name):
        noted = f'stub_launched("{name}"); return 0;'
        return f"void stub_launched(const char *); long {name}() {{ {noted} }}\n"
    if name.endswith(("Create", "Create_v2")):
        return f"long {name}(void **it) {{ *it = (void *)16; return 0; }}\n"
    return f"long {name}() {{ return 0; }}\n"


def looked_at(build: Build, name: str) -> dict[str, Any]:
    """Nodes by operator that the CPU runs. Of decode, whether a step can be one launch, and its
    kernels by name."""
    import onnxruntime as ort

    ort.set_default_logger_severity(4)
    decodes = "decode" in name
    try:
        session, refusal = _session(build.graph(name), captures=decodes), None
    except Exception as error:  # ONNX Runtime's exceptions share no narrower public base
        session, refusal = _session(build.graph(name), captures=False), first_line(error)
    on_cpu: Counter[str] = Counter()
    for part in session.get_provider_graph_assignment_info():
        if part.ep_name == "CPUExecutionProvider":
            on_cpu.update(node.op_type for node in part.get_nodes())
    report: dict[str, Any] = {"on_cpu": on_cpu, "provider": session.get_providers()[0]}
    if decodes:
        report["capture"] = refusal or "accepted"
    if decodes and refusal is None:
        report["kernels"] = launched = _run(build, name, session)
        report["launches"] = launched.total()
    return report


def _session(path: Path, captures: bool) -> Any:
    """As the runtime opens it, but for the stream, of which there is none."""
    import onnxruntime as ort

    options = session_options(None, False, Cuda.settings)
    settings = {"user_compute_stream": "1", "enable_cuda_graph": str(int(captures))}
    return ort.InferenceSession(
        path,
        options,
        providers=[("CUDAExecutionProvider", settings)],
        disabled_optimizers=Cuda.left_out,
        enable_fallback=0,
    )


def _run(build: Build, name: str, session: Any) -> Counter[str]:
    """Twice, since the first run only warms up. Return what the captured graph launches."""
    entry = build.manifest.graphs[name]
    run = bind(session, entry, "cuda", buffers := allocate(_StubMemory(), entry, {}))
    for _ in range(2):
        run()
    del buffers  # ONNX Runtime holds their addresses alone
    work_of = ctypes.CDLL(RUNTIME).stub_work
    work_of.restype = ctypes.c_char_p
    mangled = "\n".join(one.decode() for one in iter(map(work_of, count()).__next__, None))
    plain = subprocess.run(["c++filt"], input=mangled, check=True, capture_output=True, text=True)
    return Counter(map(short, plain.stdout.splitlines()))


def short(function: str) -> str:
    """A C++ function's name without its namespaces, types and arguments."""
    depth, kept = 0, ""
    for letter in function.replace("(anonymous namespace)", "").partition("(")[0]:
        depth += (letter == "<") - (letter == ">")
        kept += letter if not depth and letter != ">" else ""
    return kept.split()[-1].rpartition("::")[2]


class _StubMemory(HostMemory):
    """The stubs' device memory is the host's."""

    def allocate(self, spec: TensorSpec) -> Buffer:
        array = np.zeros(tensor_bytes(spec), np.uint8)
        return Buffer(spec.name, spec.dtype, tuple(spec.shape), array.ctypes.data, array)


if __name__ == "__main__":
    raise SystemExit(main())
