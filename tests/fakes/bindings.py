"""Makes type stubs of TensorRT's own Python bindings, without TensorRT.

The bindings wheel is a thin layer: it imports over three EMPTY libraries that have the names and
the nine symbols it links to, and then shows every class, signature and enum. Nothing can be called.
pybind11-stubgen writes that down as type stubs.
"""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.plugins.loud import skip_loudly

WHEEL = "tensorrt-cu13-bindings"
LIBRARIES = ("nvinfer", "nvinfer_plugin", "nvonnxparser")
SYMBOLS = (
    *("createInferBuilder_INTERNAL", "createInferRefitter_INTERNAL", "createInferRuntime_INTERNAL"),
    *("createNvOnnxParser_INTERNAL", "createNvOnnxParserRefitter_INTERNAL"),
    *("getBuilderPluginRegistry", "getPluginRegistry", "getNvOnnxParserVersion"),
    "initLibNvInferPlugins",
)

REPAIRS = (
    # Not Python: a parameter by the name of a keyword, and one without a default behind others.
    (r"\bin: ", "in_: "),
    (r"(def add_scale_nd\(.*channel_axis: [\w.]+)\)", r"\1 = ...)"),
    # pybind11 3 takes for an int whatever has __int__; callbacks are given an int.
    (r"typing\.SupportsInt", "int"),
    # The trampoline calls a Python writer with bytes alone: the class's docstring shows it.
    (
        r"def write\(self, data: [\w.]+, size: int\)",
        "def write(self, data: bytes)",
    ),
    # The buffer protocol, of which its docstring speaks, leaves no trace that pybind11 shows.
    (
        r"(class IHostMemory:\n)",
        r"\1    def __buffer__(self, flags: int, /) -> memoryview: ...\n",
    ),
)


def version() -> str:
    try:
        return importlib.metadata.version(WHEEL)
    except importlib.metadata.PackageNotFoundError:
        skip_loudly(f"{WHEEL} is missing: OUR CALLS OF TENSORRT WERE NOT HELD AGAINST ITS BINDINGS")


def over_nothing(folder: Path) -> dict[str, str]:
    """An environment in which `import tensorrt` gives the real bindings, over empty libraries."""
    _make_empty_libraries(folder, version().partition(".")[0])
    module = "from tensorrt_bindings import *\nfrom tensorrt_bindings import __version__\n"
    (folder / "tensorrt.py").write_text(module)
    path = os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(folder)])
    return os.environ | {"LD_LIBRARY_PATH": str(folder), "PYTHONPATH": path}


def make_stubs(folder: Path) -> Path:
    """Stubs of the installed bindings as the module `tensorrt`; the folder for MYPYPATH."""
    environment = over_nothing(folder / "empty")
    text = _generated("tensorrt_bindings", "tensorrt", folder, environment)
    return _placed(folder, tensorrt=text)


def make_rtx_stubs(folder: Path) -> Path:
    """Stubs of TensorRT for RTX's bindings as the modules `tensorrt` and `tensorrt_rtx`."""
    text = _generated("tensorrt_rtx_bindings", "tensorrt_rtx", folder)
    return _placed(folder, tensorrt=text, tensorrt_rtx="from tensorrt import *\n")


def _generated(
    module: str, stub: str, folder: Path, environment: dict[str, str] | None = None
) -> str:
    """What pybind11-stubgen writes of a package's module, repaired."""
    script = Path(sys.executable).with_name("pybind11-stubgen")
    if not script.is_file():
        skip_loudly("pybind11-stubgen is missing: NO STUBS OF TENSORRT'S BINDINGS WERE MADE")
    command = [str(script), module, "--output-dir", str(folder), "--ignore-all-errors"]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    text = (folder / module / f"{stub}.pyi").read_text()
    shutil.rmtree(folder / module)
    return _repaired(text)


def _placed(folder: Path, **modules: str) -> Path:
    for name, text in modules.items():
        (folder / name).mkdir()
        (folder / name / "__init__.pyi").write_text(text)
    return folder


def _make_empty_libraries(folder: Path, major: str) -> None:
    folder.mkdir()
    source = folder / "empty.c"
    source.write_text("".join(f"void *{symbol}(void) {{ return 0; }}\n" for symbol in SYMBOLS))
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        skip_loudly("no C compiler: TENSORRT'S BINDINGS WERE NOT LOADED")
    for name in LIBRARIES:
        library = f"lib{name}.so.{major}"
        flags = ["-shared", "-fPIC", f"-Wl,-soname,{library}", "-o", str(folder / library)]
        subprocess.run([compiler, *flags, str(source)], check=True)


def _repaired(text: str) -> str:
    assert "def write(self, data: bytes) -> int:" in text, "of IStreamWriter's docstring"
    for pattern, replacement in REPAIRS:
        text, count = re.subn(pattern, replacement, text)
        assert count or "SupportsInt" in pattern, f"nothing to repair: {pattern}"
    return text + "\n__version__: str\n"
