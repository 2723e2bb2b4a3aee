"""Imports run one way, and what runs a build needs no training framework."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import snapexport

PACKAGE = Path(snapexport.__file__).parent

HEAVY = (
    "torch transformers onnx onnxruntime tensorrt cuda tritonclient starlette uvicorn grpc jinja2"
).split()

ALLOWED = {
    "contract": set(),
    "runtime": {"contract"},
    "graphs": {"contract"},
    "exporter": {"contract", "graphs.markers"},
    "plugins": set(),
    "vault": set(),
    "builder": {"contract", "exporter", "graphs"},
    "engines": {"contract"},
    "bench": {"contract", "runtime", "builder", "graphs", "vault", "plots"},
    "serving": {"contract", "runtime", "builder"},
    "eval": {"contract", "exporter", "runtime", "builder", "serving", "vault", "plots"},
    "cli": {
        "contract",
        "runtime",
        "builder",
        "engines",
        "eval",
        "bench",
        "serving",
        "vault",
        "start",
    },
}
"""Who may import whom. Whatever a package is not allowed stays out of it."""


def imported(file: Path) -> Iterator[str]:
    """The parts of snapexport that a file imports, also inside functions."""
    for node in ast.walk(ast.parse(file.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import in {file}"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "snapexport" and len(parts) > 1:
                yield ".".join(parts[1:3]) if parts[1:3] == ["graphs", "markers"] else parts[1]


def test_imports_between_packages_run_one_way() -> None:
    for package, allowed in ALLOWED.items():
        for file in (PACKAGE / package).rglob("*.py"):
            others = {name for name in imported(file) if name.split(".")[0] != package}
            others.discard("__version__")
            # Who may import a package may import its modules.
            wrong = {name for name in others if not {name, name.split(".")[0]} & allowed}
            assert not wrong, f"{file} imports {sorted(wrong)}"


def test_no_package_is_left_out() -> None:
    found = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    assert found == set(ALLOWED)


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom snapexport.cli.app import parser\nparser()\n"
        f"print(*{set(HEAVY)!r} & set(sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == ""
