"""The documentation is true to the repository: links resolve, commands parse, flags exist."""

import argparse
import importlib
import inspect
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from snapexport.cli.app import parser
from snapexport.contract.graph_options import GraphOptions
from snapexport.contract.manifest import Manifest, ModelFacts
from snapexport.contract.records import GeometryRecord
from snapexport.runtime.requests.config import LLMConfig
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.request import (
    Completion,
    OutputDelta,
    SamplingParams,
    Score,
    TokenLogprobs,
)
from snapexport.serving.metrics import METRICS
from tools import cli_reference

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
PAGES += [*(ROOT / "docs").rglob("*.md"), ROOT / "plugins" / "README.md"]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]

FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
PATH = re.compile(r"`((?:[\w.-]+/)+[\w.-]+(?:/|\.\w+))`")
IMPORT = re.compile(r"^from (snapexport[\w.]*) import ([\w, ]+)$", re.MULTILINE)
FLAG = re.compile(r"`(--[a-zA-Z][\w-]*)")

OTHERS = {
    *(
        "--apply_chat_template",
        "--batch_size",
        "--device",
        "--model_args",
        "--include_path",
    ),  # lm_eval
    *("--dynamicPlugins", "--setPluginsToSerialize", "--plugins"),  # trtexec, polygraphy
    *("--gpus", "--model-control-mode", "--backend-config"),  # docker, tritonserver
    *("--discovery-backend", "--event-plane", "--http-port", "--request-plane"),  # dynamo.frontend
    "--exit-timeout-secs",  # tritonserver
    "--no-deps",  # pip
    *("--recover", "--dry-run", "--import-mode", "--out", "--help"),  # tools of ours
    *("--quick", "--prepare", "--resume", "--set", "--work", "--write"),  # tools/studies/speed
    *("--peers-python", "--kvpress-python", "--dynamo-python", "--cache-budget", "--rounds"),
}
"""Flags that the pages name and other programs have."""

ELSEWHERE = {
    "docs/operators.md",
    "engines/NAME.log",
    "engines/onnxruntime/",
    "snapshots/REVISION/",
    "weights/model.norm.weight.safetensors",
}
"""Files that the pages name and the repository does not have."""


def by_page(pattern: str = "") -> "pytest.MarkDecorator":
    pages = [name for name in NAMES if name.endswith(".md") and pattern in name]
    return pytest.mark.parametrize("page", pages)


@by_page()
def test_relative_links_of_docs_pages_resolve(page: str) -> None:
    text = FENCE.sub("", (ROOT / page).read_text())
    broken = [link for link in LINK.findall(text) if not resolves(ROOT / page, link)]
    assert broken == []


def resolves(page: Path, link: str) -> bool:
    if re.match(r"[a-z]+:", link):
        return True
    file, _, anchor = link.partition("#")
    target = (page.parent / file).resolve() if file else page
    if not target.exists() or not target.is_relative_to(ROOT):
        return False
    return not anchor or anchor in anchors(target)


def anchors(page: Path) -> set[str]:
    """Anchors of the headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@by_page()
def test_commands_of_fenced_blocks_parse(page: str) -> None:
    ours = parser()
    for command in commands((ROOT / page).read_text()):
        ours.parse_args(command)  # raises UserError, which names the argument


def commands(text: str) -> Iterator[list[str]]:
    """Arguments of each line that calls snapexport."""
    for block in FENCE.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            call = line.removeprefix("$ ").rpartition(" | ")[2].partition(" && ")[0]
            if call.startswith("snapexport "):
                yield shlex.split(call.removesuffix(" &"), comments=True)[1:]


def test_commands_are_found_in_readme_and_quickstart() -> None:
    for page, least in (("README.md", 7), ("docs/get-started/quickstart.md", 8)):
        assert len(list(commands((ROOT / page).read_text()))) >= least


@by_page()
def test_flags_of_docs_pages_exist(page: str) -> None:
    named = set(FLAG.findall((ROOT / page).read_text()))
    assert named - flags() - OTHERS == set()


@cache
def flags() -> set[str]:
    """Every flag of every command."""
    every = [parser(), *cli_reference.subcommands(parser()).values()]
    return {flag for one in every for action in one._actions for flag in action.option_strings}


def test_the_command_line_reference_is_current() -> None:
    assert cli_reference.PAGE.read_text() == cli_reference.render(), (
        "run `python tools/cli_reference.py`"
    )


def test_every_command_is_in_the_reference() -> None:
    text = cli_reference.PAGE.read_text()
    subcommands: dict[str, argparse.ArgumentParser] = cli_reference.subcommands(parser())
    assert [name for name in subcommands if f"## snapexport {name}\n" not in text] == []


def test_every_docs_page_is_linked_from_the_index() -> None:
    index = ROOT / "docs" / "index.md"
    linked = {
        (index.parent / link.partition("#")[0]).resolve()
        for link in LINK.findall(index.read_text())
    }
    pages = set((ROOT / "docs").rglob("*.md")) - {index}
    assert pages - linked == set()


def test_glossary_has_each_term_once_and_in_order() -> None:
    text = (ROOT / "docs" / "reference" / "glossary.md").read_text()
    terms = [
        line.split("|")[1].strip().lower() for line in text.splitlines() if line.startswith("| ")
    ]
    assert len(terms) == len(set(terms))
    assert terms[1:] == sorted(terms[1:])


def test_docs_pages_that_the_code_names_exist() -> None:
    homes = ("src/snapexport", "exporter", "graphs", "runtime", "plugins", "tools", "tests")
    files = [file for home in homes for file in (ROOT / home).rglob("*.py")] + [ROOT / "Makefile"]
    theirs = {"docs/operators.md", "docs/TRT_custom_ops.md", "docs/OperatorKernels.md"}
    named = {page for file in files for page in re.findall(r"docs/[\w/-]+\.md", file.read_text())}
    assert [page for page in sorted(named - theirs) if not (ROOT / page).is_file()] == []


def test_every_metric_is_in_the_reference() -> None:
    text = (ROOT / "docs" / "how-to" / "serve.md").read_text()
    assert [one.name for one in METRICS if one.name.partition("requests_")[2] not in text] == []


@by_page()
def test_files_and_folders_of_docs_pages_exist(page: str) -> None:
    named = set(PATH.findall((ROOT / page).read_text()))
    homes = (ROOT, ROOT / "src" / "snapexport", (ROOT / page).parent)
    missing = {name for name in named if not any((home / name).exists() for home in homes)}
    assert missing - ELSEWHERE == set()


@pytest.mark.parametrize(
    ("page", "kind"),
    [
        ("build-directory.md", Manifest),
        ("build-directory.md", GraphOptions),
        ("build-directory.md", ModelFacts),
        ("build-directory.md", GeometryRecord),
        ("python.md", SamplingParams),
        ("python.md", Completion),
        ("python.md", OutputDelta),
        ("python.md", Score),
        ("python.md", TokenLogprobs),
    ],
)
def test_every_field_of_a_public_class_is_in_the_reference(page: str, kind: type) -> None:
    text = (ROOT / "docs" / "reference" / page).read_text()
    assert [name for name in kind.__annotations__ if f"`{name}`" not in text] == []


@by_page()
def test_names_that_fenced_blocks_import_exist(page: str) -> None:
    code = "\n".join(FENCE.findall((ROOT / page).read_text()))
    for module, names in IMPORT.findall(code):
        home = importlib.import_module(module)
        assert [name for name in names.split(", ") if not hasattr(home, name)] == []


def test_every_argument_of_llm_is_in_the_reference() -> None:
    text = (ROOT / "docs" / "reference" / "python.md").read_text()
    arguments = {*inspect.signature(LLM).parameters, *LLMConfig.__annotations__}
    assert [name for name in arguments if f"`{name}`" not in text] == []


def test_no_page_has_marks_of_an_unfinished_merge() -> None:
    marks = re.compile(r"^(<{7}|={7}|>{7})( |$)", re.MULTILINE)
    assert [name for name in NAMES if marks.search((ROOT / name).read_text())] == []
