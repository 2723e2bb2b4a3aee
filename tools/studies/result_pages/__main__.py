"""Computes the tables and the sentences with numbers of the pages of results from the results.

python -m tools.studies.result_pages           print each table as its page has to have it
python -m tools.studies.result_pages --check   exit status 1 if a page says something else
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator

from tools.studies.result_pages import claims, quality, speed
from tools.studies.result_pages.results import ROOT, STUDIES

DETAILS = "../tools/studies/quality/details.md"
MORE_SPEED = "../tools/studies/speed/details.md"

TABLES: dict[str, tuple[str, Callable[[], Iterable[str]]]] = {
    "equal memory": ("speed.md", speed.equal_memory),
    "context": ("speed.md", speed.context),
    "overhead": (MORE_SPEED, speed.overhead),
    "sparse prefill": (MORE_SPEED, speed.sparse_prefill),
    "without AMX": (MORE_SPEED, speed.without_amx),
    "peers": (MORE_SPEED, speed.peers),
    "text": (DETAILS, quality.text),
    "needles": (DETAILS, lambda: quality.answered(quality.NEEDLES, {})),
    "question after compression": (
        DETAILS,
        lambda: quality.answered(quality.AFTER, quality.PSEUDO),
    ),
    "narrow dtypes": (DETAILS, quality.narrow),
    "options": (DETAILS, quality.options),
    "options on text": (DETAILS, quality.options_on_text),
    "tasks": (DETAILS, quality.tasks),
    "functions": (DETAILS, quality.functions),
    "retrieval": (DETAILS, quality.retrieval),
    "texts": ("quality.md", quality.texts),
    "asked": ("quality.md", quality.asked),
    "weights": ("quality.md", quality.weights),
}
"""Each table's page, below docs/, and its rows."""


def page_of(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def wrong_tables() -> Iterator[str]:
    """What a page has otherwise."""
    for name, (page, rows) in TABLES.items():
        table = "\n".join(rows())
        if not table or table not in page_of(page):
            yield f"docs/{page}: the table of {name} has to be\n{table}"


def wrong_sentences() -> Iterator[str]:
    """What a page doesn't say, or the results don't."""
    pages = page_of("quality.md"), page_of(DETAILS)
    prose = " ".join(" ".join(pages).split())
    for claim, is_true in claims.CLAIMS.items():
        if claim not in prose:
            yield f"docs/quality.md: it does not say {claim!r}"
        if not is_true():
            yield f"docs/quality.md: by the results it is not true that {claim!r}"
    for page, said in {
        MORE_SPEED: claims.of_sparse_prefill(),
        "how-to/gpu.md": claims.steps_on_a_gpu(),
    }.items():
        prose = " ".join(page_of(page).split())
        yield from (f"docs/{page}: it does not say {one!r}" for one in said if one not in prose)
    if not claims.longer_pools():
        yield "a longer pool answers more quotations"


def wrong_citations() -> Iterator[str]:
    """Pages that cite none of the files of their tables, or are too long to be read."""
    for page in ("speed.md", "quality.md"):
        study = page.removesuffix(".md")
        files = {path.name for path in (STUDIES / study / "results").glob("*.json")}
        if not any(name in page_of(page) for name in files):
            yield f"docs/{page}: it cites no file of its results"
        if page_of(page).count("\n| ") <= 20:
            yield f"docs/{page}: its tables are missing"
    if len(page_of("quality.md").split()) > 1500:
        yield "docs/quality.md: it has more than 1,500 words"


def main() -> None:
    """Print the tables, or what is wrong with the pages."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only compare the pages with it")
    if not parser.parse_args().check:
        for name, (page, rows) in TABLES.items():
            print(f"docs/{page}, {name}:", *rows(), "", sep="\n")
        return
    wrong = [*wrong_tables(), *wrong_sentences(), *wrong_citations()]
    print(*wrong, sep="\n", file=sys.stderr)
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
