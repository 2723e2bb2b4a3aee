"""One place each compares names of targets and architectures; other code reads their records."""

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import snapexport
from snapexport.contract.targets import TARGETS
from snapexport.exporter.read.families import HELD

PACKAGE = Path(snapexport.__file__).parent
TOOLS = Path(__file__).parents[2] / "tools"
TARGETS_HOME = PACKAGE / "graphs" / "targets"
ARCHITECTURES_HOME = PACKAGE / "exporter" / "read" / "families.py"
FORMATS_HOME = PACKAGE / "runtime" / "chat" / "parsers"
"""Formats of tool calls are called by the families that write them."""
MTP_HOME = PACKAGE / "methods" / "mtp" / "export.py"
"""A cache method says which families' checkpoints have what it needs."""

FAMILIES = {"llama", "mistral", "qwen", "gemma", "phi"}
ARCHITECTURE_NAMES = FAMILIES.union(*({one.name, one.model_type} for one in HELD.values()))


def sources(*outside_of: Path) -> Iterator[Path]:
    for top in sorted(PACKAGE.iterdir()):
        for file in sorted(top.rglob("*.py")):
            if not any(file.is_relative_to(home) for home in outside_of):
                yield file


def names_a_target(node: ast.expr) -> bool:
    """`target`, `manifest.target` or `request["target"]`."""
    if isinstance(node, ast.Name | ast.Attribute):
        return (node.id if isinstance(node, ast.Name) else node.attr) == "target"
    return isinstance(node, ast.Subscript) and (
        isinstance(node.slice, ast.Constant) and node.slice.value == "target"
    )


def is_literal(node: ast.expr) -> bool:
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return any(map(is_literal, node.elts))
    return isinstance(node, ast.Constant) and node.value in TARGETS


def compared_targets(tree: ast.AST) -> list[int]:
    """Lines that compare a target with a name, or match on one."""
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(map(names_a_target, sides)) and any(map(is_literal, sides)):
                lines.append(node.lineno)
        elif isinstance(node, ast.Match) and names_a_target(node.subject):
            lines.append(node.lineno)
    return lines


def named_architectures(tree: ast.AST) -> list[int]:
    """Lines with a string that is a name of an architecture, or compares the start of one."""
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node.value.lower() in {name.lower() for name in ARCHITECTURE_NAMES}:
                lines.append(node.lineno)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef) and any(
            family in node.name.lower().split("_") for family in FAMILIES
        ):
            lines.append(node.lineno)
    return lines


def test_only_graphs_targets_compares_the_names_of_targets() -> None:
    found = {
        str(file): lines
        for file in [*sources(TARGETS_HOME), *TOOLS.rglob("*.py")]
        if (lines := compared_targets(ast.parse(file.read_text())))
    }
    assert not found, "ask contract.targets.capabilities(target) instead"


def test_only_families_names_architectures() -> None:
    found = {
        str(file): lines
        for file in sources(ARCHITECTURES_HOME, FORMATS_HOME, MTP_HOME)
        if (lines := named_architectures(ast.parse(file.read_text())))
    }
    assert not found, "facts of families belong to exporter/read/families.py"


@pytest.mark.parametrize(
    ("planted", "found"),
    [
        ('if target == "tensorrt": pass', compared_targets),
        ('if build.manifest.target != "portable": pass', compared_targets),
        ('if options.target in ("onnxruntime", "portable"): pass', compared_targets),
        ('if "tensorrt" == request["target"]: pass', compared_targets),
        ('match target:\n    case "tensorrt": pass', compared_targets),
        ('if config.model_type == "gemma3_text": pass', named_architectures),
        ('known = ("LlamaForCausalLM",)', named_architectures),
        ('if name.startswith("Gemma"): pass', named_architectures),
        ("def is_gemma(config): pass", named_architectures),
    ],
)
def test_a_planted_name_is_found(planted: str, found: Callable[[ast.AST], list[int]]) -> None:
    assert found(ast.parse(planted)) == [1]
