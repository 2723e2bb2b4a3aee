"""Counts words and habits that CONTRIBUTING.md's style guide replaces, by part of the repository.

    python tools/prose.py                # a table: each habit, by part
    python tools/prose.py --show behind  # where a habit is, with its line
    python tools/prose.py --update       # write tools/prose.toml, unless a sum would rise

tools/prose.toml holds the bounds, and tests/house/test_prose.py compares: a count beyond its bound
fails, and so does a bound beyond its count. What is not in the file is 0. Text may move between
parts, since only the sum of a habit must not rise.
"""

import argparse
import ast
import io
import re
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BOUNDS = ROOT / "tools" / "prose.toml"

FIRM = "longer|more|less|fewer|faster|slower|wider|larger|smaller|further|better|worse|higher|lower"
WORDS = {
    "behind": r"\bbehind\b",
    "alone": r"\balone\b",
    "tell": r"\b(tell|tells|told|telling)\b",
    "amid": r"\bamid\b",
    "whoever": r"\bwhoever\b",
    "is no": rf"(?<!there )\b(is|are|was|were) no (?!({FIRM}|earlier|later|one)\b)",
    "of which there are none": r"\bof which there (is|are) none\b",
    "so many": r"\bso many\b",
    "as they lie": r"\bas (it|they) (lie|lies)\b",
    "lies, stands": r"\b(lie|lies|lay|lying|stand|stands|stood)\b(?! for\b)",
}
"""Patterns of each word, without regard to upper and lower case."""
FIRST_WORDS = re.compile(r"(Of|Those|As|By|What|Which)\b")
FIRST, PARTICIPLE = "first word of a docstring", "participle as a function's name"
HABITS = (*WORDS, FIRST, PARTICIPLE)

_PATTERNS = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in WORDS.items()}
_REGULAR = re.compile(r"[a-z]{3,}ed")
_VERBS_IN_ED = frozenset("bleed breed embed exceed feed heed need proceed seed shed speed".split())
_IRREGULAR = frozenset(
    "begun borne bound broken brought built caught chosen done drawn driven fallen fed felt found "
    "forgotten frozen given gone grown heard held hidden hung kept known laid led left lent lost "
    "made meant met paid said seen sent shown spent stuck taken taught thrown told torn won worn "
    "woven written".split()
)

PACKAGES = ("exporter", "graphs", "runtime", "plugins", "tools")
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "docs", "plugins/README.md")
HELP = "cli.md"
GENERATED = {"combinations.md", "architectures.md"}
"""Pages of messages, which count where the sources have them."""
DATA = ("src/snapexport/vault/prompts.py", "tools/prose.py")
"""Files whose strings are data."""
CODE_OF_OTHERS = frozenset({".cpp", ".cu", ".cuh", ".h", ".js"})
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`]*`")
TEST = re.compile(r"(?:async )?def (test_\w+)")
COMMENT = re.compile(r"//+([^\n]*)|/\*(.*?)\*/", re.DOTALL)
LEAST_WORDS = 3
"""A string with as many words is a message, of an error for instance."""


@dataclass(frozen=True)
class Found:
    """One place. part: as in tools/prose.toml, such as "runtime" or "runtime, messages"."""

    part: str
    habit: str
    place: str
    text: str


@dataclass(frozen=True)
class Text:
    """A text of the repository and the line where it begins."""

    line: int
    text: str

    def places(self, part: str, file: Path) -> Iterator[Found]:
        for habit, pattern in _PATTERNS.items():
            for match in pattern.finditer(" ".join(self.text.split())):
                around = match.string[max(0, match.start() - 45) : match.end() + 45]
                yield Found(part, habit, f"{_name(file)}:{self.line}", around)


def search(root: Path = ROOT) -> list[Found]:
    """Every place of every habit in a checkout."""
    found: list[Found] = []
    for part, file in _pages(root):
        page = FENCE.sub(lambda block: "\n" * block[0].count("\n"), file.read_text())
        for number, content in enumerate(page.split("\n"), 1):
            found += Text(number, CODE.sub("", content)).places(part, file)
    for part, file in _sources(root):
        if file.suffix != ".py":
            for match in COMMENT.finditer(file.read_text()):
                line = file.read_text().count("\n", 0, match.start()) + 1
                found += Text(line, match[1] or match[2] or "").places(part, file)
            continue
        source = file.read_text()
        nodes = [*ast.walk(ast.parse(source))]
        for text in [*_docstrings(nodes), *_comments(source)]:
            found += text.places(part, file)
        if _name(file, root) not in DATA:
            for text in _messages(nodes):
                found += text.places(f"{part}, messages", file)
        found += _habits_of_names(nodes, part, file)
    for file in sorted((root / "tests").rglob("*.py")):
        for number, row in enumerate(file.read_text().splitlines(), 1):
            if begun := TEST.match(row):
                found += Text(number, begun[1].replace("_", " ")).places("test names", file)
    return found


def is_participle(name: str) -> bool:
    """Whether a function's name is one participle, such as `held`."""
    word = name.strip("_")
    return word in _IRREGULAR or bool(_REGULAR.fullmatch(word) and word not in _VERBS_IN_ED)


def counts(found: Iterable[Found]) -> Counter[tuple[str, str]]:
    """The number of places by part and habit."""
    return Counter((one.part, one.habit) for one in found)


def read_bounds(file: Path = BOUNDS) -> dict[tuple[str, str], int]:
    """The bounds by part and habit."""
    table = tomllib.loads(file.read_text()) if file.exists() else {}
    return {(part, habit): most for part, row in table.items() for habit, most in row.items()}


def risen(now: Counter[tuple[str, str]], bounds: dict[tuple[str, str], int]) -> dict[str, str]:
    """Habits whose sum over all parts is above the bounds' sum, with both sums."""
    sums, former = Counter[str](), Counter[str]()
    for (_, habit), count in now.items():
        sums[habit] += count
    for (_, habit), count in bounds.items():
        former[habit] += count
    higher = [habit for habit in HABITS if sums[habit] > former[habit]]
    return {habit: f"{sums[habit]}, bound {former[habit]}" for habit in higher}


def spell(now: Counter[tuple[str, str]]) -> str:
    """The text of tools/prose.toml."""
    lines = ["# Bounds of tests/house/test_prose.py. `python tools/prose.py --update` lowers them."]
    for part in sorted({part for part, _ in now}):
        lines.append(f'\n["{part}"]')
        lines += [f'"{habit}" = {now[part, habit]}' for habit in HABITS if now[part, habit]]
    return "\n".join(lines) + "\n"


def _pages(root: Path) -> Iterator[tuple[str, Path]]:
    """Each page, with its part: "help" for the command line's own texts, else "pages"."""
    for name in PAGES:
        path = root / name
        for page in sorted(path.rglob("*.md")) if path.is_dir() else [path]:
            if page.name not in GENERATED:
                yield "help" if page.name == HELP else "pages", page


def _sources(root: Path) -> Iterator[tuple[str, Path]]:
    """Each source file, with its part."""
    package = root / "src" / "snapexport"
    folders = {name: root / name for name in PACKAGES}
    folders |= {p.name: p for p in sorted(package.iterdir()) if p.is_dir() and not p.is_symlink()}
    files = [("start", file) for file in sorted(package.glob("*.py"))]
    files += [(part, f) for part, folder in folders.items() for f in sorted(folder.rglob("*"))]
    for part, file in files:
        if "studies" not in file.parts and file.suffix in {".py", *CODE_OF_OTHERS}:
            yield part, file


def _docstrings(nodes: list[ast.AST]) -> Iterator[Text]:
    """Docstrings, and strings that explain the constant before them."""
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield Text(node.lineno, str(node.value.value))


def _comments(source: str) -> Iterator[Text]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield Text(token.start[0], token.string)


def _messages(nodes: list[ast.AST]) -> Iterator[Text]:
    """Strings of several words; `{}` stands for a value of an f-string."""
    inner = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            inner |= {id(part) for part in node.values}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in node.values]
            text = "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and id(node) not in inner:
            text = node.value if isinstance(node.value, str) else ""
        else:
            continue
        if len(text.split()) >= LEAST_WORDS:
            yield Text(node.lineno, text)


def _habits_of_names(nodes: list[ast.AST], part: str, file: Path) -> Iterator[Found]:
    for node in nodes:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            continue
        line = 1 if isinstance(node, ast.Module) else node.lineno
        place = f"{_name(file)}:{line}"
        text = ast.get_docstring(node) or ""
        if FIRST_WORDS.match(text):
            yield Found(part, FIRST, place, text.splitlines()[0])
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            properties = {ast.unparse(one).rpartition(".")[2] for one in node.decorator_list}
            if is_participle(node.name) and not properties & {"property", "cached_property"}:
                yield Found(part, PARTICIPLE, place, f"def {node.name}")


def _name(file: Path, root: Path = ROOT) -> str:
    return file.relative_to(root).as_posix() if file.is_relative_to(root) else str(file)


def main() -> int:
    """Print counts or places, or write the bounds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--show", metavar="HABIT", help="print where a habit is; all: every habit")
    parser.add_argument("--part", default="", help="only of parts that begin so")
    parser.add_argument("--update", action="store_true", help="write tools/prose.toml anew")
    arguments = parser.parse_args()
    found = [one for one in search() if one.part.startswith(arguments.part)]
    now = counts(found)
    if arguments.show:
        for one in found:
            if arguments.show in ("all", one.habit):
                print(f"{one.place}: {one.habit}: {one.text}")
        return 0
    if arguments.update:
        if arguments.part:
            parser.error("--update writes every part")
        if BOUNDS.exists() and (more := risen(now, read_bounds())):
            print("\n".join(f"{habit}: {sums}" for habit, sums in more.items()), file=sys.stderr)
            return 1
        BOUNDS.write_text(spell(now))
        return 0
    for part in sorted({part for part, _ in now}):
        row = ", ".join(f"{habit} {now[part, habit]}" for habit in HABITS if now[part, habit])
        print(f"{part}: {row}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
