"""Chooses the suites that a change needs: those of other people's processes, and of all decoders.

    python3 tools/suites.py        the targets to make, a line each; what was left out, and why

Each takes minutes. One runs if a path has changed that has a word of its own, or, but for
`architectures`, one that all share: the contract, the environments, CI. A server's suite also runs
if a file of `runtime/` has changed that the server's adapter imports. Changed means: since the
merge base with origin/main; on main itself, in the last ten commits. CI_BASE names another commit.
Without a commit to compare with, or with CI_ALL=1, all run.
"""

import ast
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHARED = frozenset({"contract", "makefile", "pyproject", "ci"})
"""Words of paths that every suite of other people's processes depends on."""
ARCHITECTURES = "architectures"
"""Every decoder of transformers, 20 minutes."""
SUITES = {
    ARCHITECTURES: {"architectures", "exporter", "pyproject"},
    "test-rtx": {"graphs", "methods", "plugins", "polygraphy", "rtx", "tensorrt", "trt"},
    "real-model": {"gguf", "fetch_real_model", "real_model"},
    "test-triton": {"triton"},
    "test-dynamo": {"dynamo"},
    "test-clients": {"clients", "openai"},
    "test-genai": {"genai", "extend"},
}
"""Words of each suite's own paths: names of folders and files, or parts of them."""
SERVERS = "test-triton", "test-dynamo", "test-clients"
"""A path in `serving` without a word of any of them belongs to each."""
CLIENTS = "test-clients"
"""Tries what the runtime gives to all servers: it is the quickest of them."""
SERVING = ROOT / "src" / "snapexport" / "serving"
PREVIOUS = 10
"""Commits of main that count as the change."""


def words(path: str) -> set[str]:
    """The words of a path: its folders and file, and what these consist of."""
    parts = [part.lower().partition(".")[0] or part[1:] for part in path.split("/")]
    return {word for part in parts for word in (part, *re.split(r"[_\-]", part))}


def users(path: str) -> list[str]:
    """The suites that depend on a path. Pages of text and studies belong to none."""
    own = words(path)
    if path.endswith(".md") or path.startswith("tools/studies/"):
        return []
    found = [suite for suite, theirs in SUITES.items() if own & theirs]
    if own & SHARED:
        return [suite for suite in SUITES if suite in found or suite != ARCHITECTURES]
    if "serving" in own and not {*found} & {*SERVERS}:
        found += SERVERS
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return [suite for suite in SUITES if suite in found or suite in adapters().get(module, ())]


@cache
def adapters() -> dict[str, set[str]]:
    """The suites of the adapters that import a module of the runtime."""
    found: dict[str, set[str]] = {}
    for file in SERVING.rglob("*.py"):
        suite = f"test-{file.relative_to(SERVING).parts[0]}"
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                for name in (node.module, *(f"{node.module}.{one.name}" for one in node.names)):
                    module = name.removeprefix("snapexport.")
                    found.setdefault(module, set()).add(suite if suite in SUITES else CLIENTS)
    return {module: suites for module, suites in found.items() if module.startswith("runtime.")}


def git(*arguments: str) -> str | None:
    """What git answers; None: it fails."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def base() -> str | None:
    """The commit to compare with."""
    if given := os.environ.get("CI_BASE"):
        return git("rev-parse", "--verify", f"{given}^{{commit}}")
    common, head = git("merge-base", "HEAD", "origin/main"), git("rev-parse", "HEAD")
    if common and common != head:
        return common
    return git("rev-parse", "--verify", f"HEAD~{PREVIOUS}")


def chosen(changed: list[str] | None) -> list[str]:
    """The suites to run. changed: None, if it is not known."""
    found = []
    for suite in SUITES:
        paths = ["all are asked for"] if changed is None else changed
        why = next((path for path in paths if changed is None or suite in users(path)), None)
        if why:
            found.append(suite)
        shown = f"runs, {why}" if why else "left out, nothing that it uses has changed"
        print(f"{suite}: {shown}", file=sys.stderr)
    return found


def main() -> None:
    """Print the targets to standard output, and the reasons to the other."""
    since = None if os.environ.get("CI_ALL") == "1" else base()
    listed = git("diff", "--name-only", since) if since else None
    print(f"suites that a change needs, since {since or 'ever'}:", file=sys.stderr)
    print(*chosen(None if listed is None else listed.splitlines()), sep="\n")


if __name__ == "__main__":
    main()
