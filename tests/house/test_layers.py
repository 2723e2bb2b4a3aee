"""Imports run one way, and the runtime needs no training framework."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import snapexport
from tools.house import ROOT, circular, imported_modules, package_modules

PACKAGE = Path(snapexport.__file__).parent

HEAVY = (
    "torch transformers onnx onnxruntime openvino tensorrt cuda tritonclient starlette uvicorn "
    "grpc jinja2"
).split()

ALLOWED = {
    "errors": set(),
    "files": {"errors"},
    # The contract follows from the list of the methods' records, which know nothing above it.
    "contract": {"errors", "files", "methods.table", "methods.method"},
    "methods": {"errors", "files", "contract"},
    "runtime": {"errors", "files", "contract", "methods.table"},
    "graphs": {"errors", "files", "contract", "methods.table"},
    "exporter": {"errors", "files", "contract", "graphs.markers"},
    "plugins": set(),
    "vault": set(),
    # It feeds graphs itself, and takes the runtime's word only for a prompt in blocks.
    "compare": {
        "errors",
        "files",
        "contract",
        "methods.table",
        "exporter",
        "runtime",
        "plugins.reference",
    },
    # A build compares a small decoder with transformers before it is written.
    "builder": {
        "errors",
        "files",
        "contract",
        "methods",
        "exporter",
        "graphs",
        "runtime",
        "compare",
    },
    "serving": {"errors", "files", "contract", "runtime", "builder"},
    "genai": {"errors", "files", "contract", "methods.table", "graphs", "runtime", "builder"},
    "measure": {
        "errors",
        "files",
        "contract",
        "methods",
        "exporter",
        "graphs",
        "runtime",
        "compare",
        "builder",
        "serving",
        "vault",
    },
    "cli": {
        "errors",
        "files",
        "contract",
        "methods",
        "runtime",
        "compare",
        "builder",
        "measure",
        "serving",
        "genai",
        "vault",
    },
}
"""The packages that each package may import."""

PARTS = {
    "surgery": {"graphs"},
    "run": {"runtime"},
    "export": {"exporter"},
    "measure": {"graphs", "exporter", "runtime", "compare", "builder"},
}
"""What a method's parts may import besides: each is loaded by the package that it names first."""

SINGLE = "graphs.markers", "runtime.chat", "plugins.reference", "methods.table", "methods.method"
"""Modules that may be permitted without their package."""


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
                part = ".".join(parts[1:3])
                yield part if part in SINGLE else parts[1]


def test_imports_between_packages_run_one_way() -> None:
    for package, allowed in ALLOWED.items():
        for file in (PACKAGE / package).rglob("*.py"):
            others = {name for name in imported(file) if name.split(".")[0] != package}
            others.discard("__version__")
            further = PARTS.get(file.stem, set()) if package == "methods" else set()
            # A permission to import a package covers its modules.
            may = allowed | further
            wrong = {name for name in others if not {name, name.split(".")[0]} & may}
            assert not wrong, f"{file} imports {sorted(wrong)}"


def imports_of_studies(files: Iterable[Path]) -> list[str]:
    """Files that import the laboratory."""
    imports = re.compile(
        r"^\s*(from|import) tools\.studies\b|^\s*from tools import .*studies", re.M
    )
    return [str(file) for file in files if imports.search(file.read_text())]


def test_only_the_laboratory_imports_the_laboratory() -> None:
    files = [
        *PACKAGE.rglob("*.py"),
        *(ROOT / "tests").rglob("*.py"),
        *(ROOT / "tools").glob("*.py"),
    ]
    files += [
        file for link in PACKAGE.iterdir() if link.is_symlink() for file in link.rglob("*.py")
    ]
    assert not imports_of_studies(files)


@pytest.mark.parametrize(
    "planted", ["from tools.studies.speed import page", "import tools.studies.speed.page"]
)
def test_a_planted_import_of_the_laboratory_is_found(planted: str, tmp_path: Path) -> None:
    file = tmp_path / "planted.py"
    file.write_text(f"def f():\n    {planted}\n")
    assert imports_of_studies([file]) == [str(file)]


def test_every_package_has_an_import_rule() -> None:
    found = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()} | {
        "errors"
    }
    assert found == set(ALLOWED)


def test_command_line_parser_loads_no_heavy_library() -> None:
    code = (
        "import sys\nfrom snapexport.cli.app import parser\nparser()\n"
        f"print(*{set(HEAVY)!r} & set(sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == ""


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = imported_modules(package_modules(ROOT))
    assert "snapexport.runtime.requests.llm" in graph, "the linked packages are seen too"
    assert circular(graph) == {}


def test_a_circle_of_modules_is_found(tmp_path: Path) -> None:
    texts = {"a": "import b.c, f", "b.c": "def f():\n    from d import g", "d": "from a import x"}
    modules = {}
    for name, text in {**texts, "e": "import a", "f": ""}.items():
        modules[name] = tmp_path / f"{name}.py"
        modules[name].write_text(text)
    found = circular(imported_modules(modules))
    assert found == {"a": {"b.c"}, "b.c": {"d"}, "d": {"a"}}
