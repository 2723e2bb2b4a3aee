"""Checks our calls of TensorRT against the signatures of its bindings, with mypy."""

import subprocess
import sys
from pathlib import Path

import snapexport
from tests.fakes.bindings import over_nothing

PACKAGE = Path(snapexport.__file__).parent
TENSORRT_CODE = [
    *sorted(PACKAGE.glob("builder/engines/*.py")),
    *sorted(PACKAGE.glob("runtime/trt/*.py")),
]

WRONG = """
import tensorrt as trt

def wrong(log: trt.ILogger) -> None:
    builder = trt.Builder(log)
    network = builder.create_network("strongly typed")
    builder.build_the_engine(network)
    registry: trt.IPluginRegistry = trt.get_plugin_registry()
    registry.load_library("x.so", 3)
    builder.create_builder_config().set_flag(trt.BuilderFlag.FP15)

class Writer(trt.IStreamWriter):
    def write(self, data: str) -> int:
        return 0
"""
WRONG_LINES = {6: "arg-type", 7: "attr-defined", 9: "call-arg", 10: "attr-defined", 13: "override"}


REAL = """
import sys
from pathlib import Path
import tensorrt as trt
from snapexport.contract import tensorrt_bindings
from snapexport.contract.targets import TENSORRT
tensorrt_bindings.use(TENSORRT)
from snapexport.builder.engines import tensorrt_build
from snapexport.builder.engines.tensorrt_callbacks import Log
from snapexport.builder.engines.tensorrt_callbacks import Monitor
from snapexport.builder.engines.tensorrt_engine import EngineWriter

folder, stages = Path(sys.argv[1]), []
tensorrt_build._require_version(TENSORRT)
log = Log(folder / "log")
for severity in (trt.ILogger.VERBOSE, trt.ILogger.WARNING, trt.ILogger.ERROR):
    log.log(severity, f"logged as {severity.name}")
print(log.failure("it failed", "a hint").message)
log.close()
monitor = Monitor(stages.append)
monitor.phase_start("phase", None, 2)
goes_on = monitor.step_complete("phase", 0)
monitor.cancel()
print(goes_on, monitor.step_complete("phase", 1), stages)
writer = EngineWriter(folder / "engine")
print(writer.write(b"abc"), len(writer.close()))
"""


def mypy(stubs: Path, *files: Path) -> list[str]:
    command = [sys.executable, "-m", "mypy", "--strict", "--python-version", "3.11"]
    command += ["--config-file", str(stubs / "mypy.ini"), "--cache-dir", str(stubs / "cache")]
    (stubs / "mypy.ini").write_text(
        f"[mypy]\nfollow_imports = silent\nmypy_path = {stubs}:{PACKAGE.parent}\n"
        "[mypy-tensorrt.*]\nignore_errors = True\n"
        "[mypy-cuda.*,tensorrt_rtx.*]\nignore_missing_imports = True\n"
    )
    done = subprocess.run(
        [*command, *map(str, files)], capture_output=True, text=True, cwd=PACKAGE.parent
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if ": error: " in line]


def test_tensorrt_calls_type_check_against_the_bindings(stubs: Path) -> None:
    using = [file for file in TENSORRT_CODE if "tensorrt_bindings import trt" in file.read_text()]
    assert {file.parent.name for file in using} == {"engines", "trt"}
    assert len(using) >= 6
    assert mypy(stubs, *TENSORRT_CODE) == []


def test_type_check_finds_wrong_tensorrt_calls(stubs: Path, tmp_path: Path) -> None:
    planted = tmp_path / "planted.py"
    planted.write_text(WRONG)
    found = {int(line.split(":")[1]): line.rpartition("[")[2][:-1] for line in mypy(stubs, planted)}
    assert {line: found.get(line) for line in WRONG_LINES} == WRONG_LINES


def test_tensorrt_modules_import_and_subclass_the_real_bindings(tmp_path: Path) -> None:
    """Enums and base classes are the real ones. No call reaches TensorRT."""
    done = subprocess.run(
        [sys.executable, "-c", REAL, str(tmp_path)],
        env=over_nothing(tmp_path / "empty"),
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines() == [
        "it failed: logged as ERROR",
        "True False ['phase', 'phase: 1 of 2', 'phase: 2 of 2']",
        "3 64",
    ], done.stderr
    log = (tmp_path / "log").read_text()
    assert log == "WARNING: logged as WARNING\nERROR: logged as ERROR\n"
