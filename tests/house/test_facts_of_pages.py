"""Numbers that several pages give are the same in each, and those of their source."""

import re
from pathlib import Path

import pytest

from snapexport.contract.manifest import FORMAT_VERSION

ROOT = Path(__file__).parents[2]


def text(page: str) -> str:
    return " ".join((ROOT / page).read_text().split())


def types_built() -> str:
    """As `make architectures` counted them."""
    (built,) = re.findall(r"(\d+) of \d+ types are built", text("docs/reference/architectures.md"))
    return str(built)


def models_measured() -> int:
    """Models of the table of running text."""
    section = text("docs/quality.md").partition("## Running text")[2].partition("## Questions")[0]
    return len(set(re.findall(r"\| ([A-Z][\w.-]+(?: \w+)*) \| \d,\d{3} \|", section)))


@pytest.mark.parametrize(
    ("page", "pattern"),
    [
        ("CHANGELOG.md", r"(\d+) types of decoders"),
        ("docs/get-started/alternatives.md", r"\[(\d+)\]\(\.\./reference/architectures\.md\)"),
    ],
)
def test_pages_count_as_many_architectures_as_the_list_of_them(page: str, pattern: str) -> None:
    assert re.findall(pattern, text(page)) == [types_built()]


@pytest.mark.parametrize("page", ["README.md", "docs/quality.md", "docs/verification.md"])
def test_pages_name_as_many_models_as_the_table_of_text_has(page: str) -> None:
    names = {4: "four", 5: "five", 6: "six"}
    pattern = rf"{names[models_measured()]} models\W.*?135 M to 1\.5 B parameters"
    assert re.search(pattern, text(page))


def test_reference_gives_the_format_version_of_the_code_once() -> None:
    page = text("docs/reference/build-directory.md")
    assert re.findall(r"`format_version` \D{0,5}(\d+)", page) == [str(FORMAT_VERSION)]


@pytest.mark.parametrize(
    ("page", "package"),
    [
        ("docs/how-to/triton.md", "nvidia-pytriton"),
        *(("docs/how-to/dynamo.md", name) for name in ("ai-dynamo", "nixl", "nixl-cu13")),
    ],
)
def test_pages_install_the_versions_that_the_suites_run(page: str, package: str) -> None:
    bound = re.compile(rf"[ \'`]{package}(?:>=[\d.]+,)?([=<]+[\d.]*\d)")
    installed = set(bound.findall(text("Makefile")))
    assert len(installed) == 1
    assert set(bound.findall(text(page))) == installed


def test_page_of_triton_names_the_image_of_the_dockerfile() -> None:
    file = ROOT / "src/snapexport/serving/triton/files/Dockerfile"
    (image,) = re.findall(r"^ARG TRITON=([\d.]+)$", file.read_text(), re.MULTILINE)
    assert f"the image {image}. " in text("docs/how-to/triton.md")
