"""Counts the house: code, files, what `LLM` reaches, where methods are named, words, seconds.

    python tools/house.py [--json]            # a table, with the bounds
    python tools/house.py --check             # exit status 1 beyond a bound; `make lint` runs this
    python tools/house.py --before CHECKOUT   # beside another checkout's figures

Reads sources as text. A bound falls with its figure, and rises by `BROUGHT`; that of words never.
"""

import argparse
import ast
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = ("src/snapexport", "exporter", "graphs", "plugins", "runtime")
SOURCES = frozenset(".py .cu .cuh .cpp .h .js .css .html".split())
DATA = frozenset(".py .typed .js .css .html .json .jinja .pbtxt .txt .safetensors".split())
"""Suffixes of what the wheel has."""
PREFILL_WORDS = re.compile(r"behind|in_blocks|repeats|pseudo")
"""Kinds of prefill work, of which the scheduler knows none."""
LONGEST_FILE = 400

BROUGHT = {
    "questions about files, a page to ask them on": (816, 1148, 10, 73, 775),
    "LoRA adapters": (644, 925, 4, 11, 270),
    "head budgets over the whole model, measured by a build": (190, 292, 0, 125, 88),
    "formats, shards and types of other checkpoints; schemas": (513, 855, 6, 52, 685),
    "health beside long prompts, tools on any template": (211, 343, 2, 64, 168),
    "refusals in a second, units, wrapping, typing ahead": (655, 1014, 4, 138, 415),
    "products without rounded activations, further models": (145, 244, 0, 18, 280),
    "scores learned on other texts": (604, 1004, 5, 339, 522),
    "prompts' caches on disk": (602, 987, 7, 838, 806),
    "one number for memory": (506, 883, 9, 0, 479),
    "one graph for onnxruntime-genai": (696, 1120, 10, 39, 1225),
    "fewer kernels in a GPU's step": (313, 532, 7, 31, 175),
    "prompts in OpenVINO, and steps, read the valid part of caches": (155, 251, 1, 13, 92),
    "first tokens that wait for no vote": (52, 76, 0, 70, 130),
}
"""Lines of code, shipped, files, lines that `LLM` reaches, and of tests. They raise the bounds."""
_CODE, _SHIPPED, _FILES, _REACHED, _TESTS = map(sum, zip(*BROUGHT.values(), strict=True))

_CALIBRATED = r"[\"']calibrated[\"']|\bmean[-_ ]quer\w*|\bCalibrated\w*|\bcalibrated_votes"
CODE_LINES = 40_145
"""Bound of code lines: no blanks, docstrings or imports."""

METHODS = {
    "pseudo": r"\bpseudo\b|\bpseudo[-_]tokens?\b|\bPseudo\w*",
    "repeat": r"[\"']repeat[\"'](?!:)|\bRepetition(?!_penalty)\w+|\brepeated_(?:chunk|starts)\b",
    "calibrated": _CALIBRATED,
    "head_budgets": r"\bhead[-_]budgets?\b|\bHeadBudget\w*",
    "int8_cache": r"\bint8_cache\b|\bINT8_(?:ROWS|SCALE|CACHE)|\bInt8(?:Rows|Scale)",
    "sparse_prefill": r"\bsparse[-_]prefill\b|\bprefill[-_]budget\b|\bSparsePrefill\w*",
    "short_chunks": r"\bshort[-_]chunks\b|\bShortChunk\w*",
    "several_tokens": r"\bseveral_tokens\b|\btokens[-_]per[-_]step\b|\bSeveralTokens\w*",
    "mtp": r"\bmtp\w*\b|\bMtp\w*|\bMTP\w*|multi-token prediction",
    "states": r"\bRecurrentStates\b|\brecurrent_states\b",
    "top_tokens": r"\btop[-_]tokens\b|\bTopTokens\w*|\bTOP_TOKENS",
    "extend": r"[\"']extend[\"']|--extend\b|\bextend\.onnx|\bExtend\w+|\bEXTEND\w*",
}
"""How a file names a cache method. Outside of methods/ none does."""
_NAMES = tuple(map(re.compile, METHODS.values()))

Value = int | float


@dataclass(frozen=True)
class Figure:
    """A count, and the most that it may be; None: it has no limit."""

    name: str
    value: Value
    most: Value | None = None

    @property
    def is_beyond(self) -> bool:
        return self.most is not None and self.value > self.most


def imported_modules(modules: Mapping[str, Path]) -> dict[str, set[str]]:
    """Each module and the modules that it imports.

    Imports inside functions and for type checkers count too: a reader has to know each, and none is
    needed to break a circle. Packages that a name passes through do not count.
    """
    graph: dict[str, set[str]] = {}
    for module, file in modules.items():
        graph[module] = set()
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            for name in names:
                while name and name not in modules:  # a function or a class of the module
                    name = name.rpartition(".")[0]
                graph[module] |= {name} - {"", module}
    return graph


def circular(graph: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The modules on circles, with their imports among each other: nothing leads in or out."""
    rest = dict(graph)
    while True:
        targets = set().union(*rest.values())
        kept = {m: t & rest.keys() for m, t in rest.items() if m in targets and t & rest.keys()}
        if kept == rest:
            return rest
        rest = kept


def reached(graph: Mapping[str, set[str]], start: str) -> set[str]:
    """The modules that a module imports, and those that they import, with itself."""
    found, left = {start}, [start]
    while left:
        new = graph[left.pop()] - found
        found |= new
        left += new
    return found


def package_modules(root: Path) -> dict[str, Path]:
    """The package's modules by name, with the folders that src/snapexport/ links to."""
    modules, package = dict[str, Path](), root / "src" / "snapexport"
    for file in _files(package, *(path for path in package.iterdir() if path.is_symlink())):
        if file.suffix == ".py":
            parts = file.relative_to(package.parent).with_suffix("").parts
            modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return modules


def figures(root: Path) -> list[Figure]:
    """All counts of a checkout."""
    shipped = [file for file in _files(*(root / name for name in SHIPPED)) if _is_source(file)]
    tests = [file for file in _files(root / "tests") if file.suffix == ".py"]
    tools = [file for file in _files(root / "tools") if file.suffix in {".py", ".sh"}]
    studies = [file for file in tools if "studies" in file.relative_to(root).parts]
    pages = [file for file in _files(root / "docs") if file.suffix == ".md"]
    modules = package_modules(root)
    graph = imported_modules(modules)
    llm = next(n for n in modules if n.endswith(".llm") and ".runtime." in n)
    of_llm = [modules[name] for name in reached(graph, llm)]
    scheduler = next(path for name, path in modules.items() if name.endswith(".scheduler"))
    python = [file for file in shipped if file.suffix == ".py"]
    lengths = sorted(length for file in python for length in _functions(file))
    outside = [file for file in python if "methods" not in file.relative_to(root).parts]
    naming = [file for file in outside if any(re.search(one, file.read_text()) for one in _NAMES)]
    of_one = [file for file in python if re.search(_CALIBRATED, file.read_text())]
    return [
        Figure("code lines", sum(map(_code, shipped)), CODE_LINES + _CODE),
        Figure("files that name a method", len(naming), 0),
        Figure("files of the calibrated vote", len(of_one), 5),
        Figure("shipped lines", _lines(shipped), 64_835 + _SHIPPED),
        *(Figure(f"  {name}", _lines(_files(root / name), SOURCES)) for name in SHIPPED),
        Figure("files of the wheel", sum(1 for _ in _wheel(root)), 399 + _FILES),
        Figure("lines that LLM reaches", _lines(of_llm), 11_280 + _REACHED),
        Figure("  files", len(of_llm)),
        Figure("lines of tests", _lines(tests), 50_010 + _TESTS),
        Figure("  files flat in tests/", sum(file.parent == root / "tests" for file in tests)),
        Figure("lines of tools", _lines(tools) - _lines(studies), 1_225),
        Figure("lines of studies", _lines(studies)),
        *_seconds(root / "build"),
        Figure("pages of docs", len(pages), 40),
        Figure("words of docs", sum(map(_words, pages)), 40_000),
        Figure("files over 400 lines", sum(_lines([f]) > LONGEST_FILE for f in shipped + tests), 0),
        Figure("modules on circles", len(circular(graph)), 0),
        Figure(
            "prefill work in the scheduler", len(PREFILL_WORDS.findall(scheduler.read_text())), 0
        ),
        Figure("lines of a function, median", lengths[len(lengths) // 2]),
        Figure("lines of a function, 90 %", lengths[len(lengths) * 9 // 10]),
    ]


def _seconds(folder: Path) -> Iterator[Figure]:
    """Seconds that the latest runs of the suites took; they depend on the machine."""
    for file in sorted(folder.glob("test*.xml")):
        times = [float(one.get("time", 0)) for one in ElementTree.parse(file).iter("testsuite")]
        yield Figure(f"seconds of make {file.stem}", round(sum(times)))


def _files(*folders: Path) -> Iterator[Path]:
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path


def _is_source(file: Path) -> bool:
    return file.suffix in SOURCES


def _words(page: Path) -> int:
    """Words of a page; none of a list that a run writes, in which one looks up a line."""
    return 0 if page.name == "architectures.md" else len(page.read_text().split())


def _lines(files: Iterable[Path], suffixes: frozenset[str] = DATA | SOURCES | {".sh"}) -> int:
    return sum(file.read_text().count("\n") for file in files if file.suffix in suffixes)


def _code(file: Path) -> int:
    """Lines without blanks, and in Python without docstrings and imports."""
    text = file.read_text()
    skipped = set[int]()
    for node in ast.walk(ast.parse(text)) if file.suffix == ".py" else ():
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Expr) and not _is_code(node):
            skipped.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(text.splitlines(), 1)
    return sum(bool(line.strip()) and number not in skipped for number, line in lines)


def _is_code(node: ast.stmt) -> bool:
    """No import and no text by itself, such as a docstring."""
    return isinstance(node, ast.Expr) and not (
        isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    )


def _wheel(root: Path) -> Iterator[Path]:
    package = root / "src" / "snapexport"
    for file in _files(package, *(path for path in package.iterdir() if path.is_symlink())):
        if file.suffix in DATA:
            yield file


def _functions(file: Path) -> Iterator[int]:
    """Lines of each function."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
            yield node.end_lineno - node.lineno + 1


def _spelled(value: Value | None) -> str:
    return "" if value is None else f"{value:,}"


def main() -> int:
    """Print the figures; with --check, say by the exit status whether all are within bounds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=ROOT, help="a checkout (default: this one)")
    parser.add_argument("--before", type=Path, help="another checkout, to compare with")
    parser.add_argument("--check", action="store_true", help="exit with 1 beyond a bound")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()
    now = figures(args.root)
    former = {one.name: one.value for one in figures(args.before)} if args.before else {}
    if args.json:
        print(json.dumps({one.name.strip(): one.value for one in now}, indent=2))
    else:
        print(f"{'':34}{'before':>10}{'now':>10}{'at most':>10}")
        for one in now:
            row = former.get(one.name), one.value, one.most
            mark = "  BEYOND" if one.is_beyond else ""
            print(f"{one.name:34}" + "".join(f"{_spelled(cell):>10}" for cell in row) + mark)
    return int(args.check and any(one.is_beyond for one in now))


if __name__ == "__main__":
    sys.exit(main())
