"""The fake TensorRT has no class, member or parameter that the real bindings don't have."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.conftest import FAKES
from tests.plugins.loud import skip_loudly

FAKE = FAKES / "tensorrt" / "__init__.py"

Members = dict[str, list[list[str]]]
"""Parameters of each overload, by name; an attribute has none."""


def members(node: ast.ClassDef | ast.Module) -> Members:
    found: Members = {}
    for name, parameters in _members(node):
        found.setdefault(name, []).append(parameters)
    return found


def _members(node: ast.ClassDef | ast.Module) -> Iterator[tuple[str, list[str]]]:
    for child in node.body:
        if isinstance(child, ast.FunctionDef):
            is_property = any(ast.unparse(one) == "property" for one in child.decorator_list)
            if child.name == "__init__":
                yield from ((name, []) for name in _assigned_to_self(child))
            yield child.name, [] if is_property else [arg.arg for arg in child.args.args]
        elif isinstance(child, ast.AnnAssign | ast.Assign):
            targets = [child.target] if isinstance(child, ast.AnnAssign) else child.targets
            yield from ((ast.unparse(target), []) for target in targets)


def _assigned_to_self(function: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def classes(module: ast.Module) -> dict[str, ast.ClassDef]:
    return {node.name: node for node in module.body if isinstance(node, ast.ClassDef)}


def is_ours(name: str) -> bool:
    """Whether a name is the fake's own: private, or for planting and recording."""
    return name.startswith("_") or name in ("planted", "calls", "libraries")


def drift(fake: str, real: str) -> list[str]:
    """Members of `fake` that `real` lacks."""
    wrong = []
    module, stub = ast.parse(fake), ast.parse(real)
    pairs = [("", module, stub)]
    for name, node in classes(module).items():
        if name not in classes(stub):
            wrong.append(name)
        else:
            pairs.append((f"{name}.", node, classes(stub)[name]))
    for prefix, ours, theirs in pairs:
        known = members(theirs)
        for name, overloads in members(ours).items():
            if not is_ours(name) or (name == "__init__" and prefix):
                wrong += [
                    f"{prefix}{name}({', '.join(parameters)})"
                    for parameters in overloads
                    if not _is_known(name, parameters, known)
                ]
    return wrong


def _is_known(name: str, parameters: list[str], known: Members) -> bool:
    if name == "__init__":  # classes that only TensorRT makes have none
        return name not in known or parameters in known[name] or parameters == ["self"]
    return parameters in known.get(name, [])


def test_fake_tensorrt_has_only_members_of_the_bindings(stubs: Path) -> None:
    assert drift(FAKE.read_text(), (stubs / "tensorrt" / "__init__.pyi").read_text()) == []


def test_fake_cuda_has_only_members_of_the_bindings() -> None:
    try:
        from cuda.bindings import runtime
    except ModuleNotFoundError:
        skip_loudly("cuda-python is missing: THE FAKE GPU WAS NOT HELD AGAINST IT")
    fake = ast.parse((FAKES / "cuda" / "bindings" / "runtime.py").read_text())
    functions = {node.name for node in fake.body if isinstance(node, ast.FunctionDef)}
    assert functions == {name for name in functions if callable(getattr(runtime, name))}
    assert set(members(classes(fake)["cudaError_t"])) <= set(dir(runtime.cudaError_t))
    assert {"name", "major", "minor"} <= set(dir(runtime.cudaDeviceProp))


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ("def parse_from_file(self, model", "def parse_from_file(self, path", "parse_from_file"),
        ("def serialize(", "def serialise(", "ITimingCache.serialise"),
        ("class OnnxParser", "class ONNXParser", "ONNXParser"),
        ("    STRIP_PLAN = 17", "    STRIP_WEIGHTS = 17", "BuilderFlag.STRIP_WEIGHTS"),
        ("self.engine_host_code_allowed", "self.host_code_allowed", "Runtime.host_code_allowed"),
    ],
)
def test_drift_of_the_fake_tensorrt_is_found(
    stubs: Path, before: str, after: str, found: str
) -> None:
    source = FAKE.read_text()
    assert before in source
    real = (stubs / "tensorrt" / "__init__.pyi").read_text()
    assert any(found in one for one in drift(source.replace(before, after), real))
