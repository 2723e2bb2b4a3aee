"""The sources that a module consists of: its file, and the files of all that it imports.

Found by reading, so that a key of what a module makes changes with them and with nothing else. An
import counts wherever it is, except under TYPE_CHECKING; of a package that is only on the way to a
module, what its `__init__` imports when it is loaded counts. A text that is the name of a module
counts as an import of it, and so do a method's `parts`: tables name what they load later.
tests/house/test_store.py compares this with what Python loads.
"""

import ast
import hashlib
import sysconfig
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

FOLDERS = {
    package: Path(folder)
    for package in ("snapexport", "tests")
    if (spec := find_spec(package))
    for folder in [*(spec.submodule_search_locations or [])][:1]
}
"""Found without an import: modules that only ask for a digest would else have all of both."""


def digest(*modules: str) -> str:
    """Hash of the sources of modules and of the installed packages, which they import too."""
    return hashlib.sha256("".join([*map(_digest, modules), _installed()]).encode()).hexdigest()


@cache
def _digest(module: str) -> str:
    files = sorted(file_of(one) for one in closure(module))
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()


@cache
def _installed() -> str:
    """Names and versions of the installed packages, and Python's."""
    folder = Path(sysconfig.get_path("purelib"))
    names = sorted(path.name for path in folder.glob("*.dist-info"))
    return f"{sysconfig.get_python_version()} {names}"


@cache
def closure(module: str) -> frozenset[str]:
    """A module and all modules of ours that it imports, directly or not."""
    found: dict[str, bool] = {}
    waiting = [(module, True)]
    while waiting:
        name, is_used = waiting.pop()
        if found.get(name, False) or (name in found and not is_used):
            continue
        found[name] = is_used
        waiting += [(one, True) for one in imported(name, is_used)]
        package = name.rpartition(".")[0]
        if is_module(package):
            waiting.append((package, False))
    return frozenset(found)


@cache
def imported(module: str, later: bool = True) -> frozenset[str]:
    """The modules of ours that a module names. later: also in its functions, and as texts."""
    file = file_of(module)
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    named = _named(ast.parse(file.read_text()), package, later)
    return frozenset(name for name in named if is_module(name))


def _named(tree: ast.AST, package: str, later: bool) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=name, names=names, level=level):
                above = package.split(".")[: package.count(".") + 2 - level] if level else []
                base = ".".join([*above, *([name] if name else [])])
                inner = [f"{base}.{alias.name}" for alias in names]
                yield from (name if is_module(name) else base for name in inner)
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                continue
            case ast.FunctionDef() | ast.AsyncFunctionDef() if not later:
                continue
            case ast.keyword(arg="parts", value=ast.Tuple(elts=parts)) if later:
                yield from (f"{package}.{x.value}" for x in parts if isinstance(x, ast.Constant))
            case ast.Constant(value=str(text)) if later and "." in text:
                yield package + text if text.startswith(".") else text
        yield from _named(node, package, later)


@cache
def is_module(name: str) -> bool:
    return name.partition(".")[0] in FOLDERS and _file(name) is not None


def file_of(module: str) -> Path:
    file = _file(module)
    assert file is not None, f"{module} is not a module of ours"
    return file


def _file(module: str) -> Path | None:
    root, *parts = module.split(".")
    if not all(part.isidentifier() for part in parts):
        return None
    path = FOLDERS[root].joinpath(*parts)
    files = path / "__init__.py", path.with_name(f"{path.name}.py")
    return next((file for file in files if file.is_file()), None)
