"""What the page of speed says of sparse prefill's quality is what the results say."""

from collections.abc import Callable, Iterator

import pytest

from tests.house.test_result_pages import ROOT, Row, found, mean, nats, report


def sparse_needles() -> Iterator[str]:
    rows = report("quality", "sparse_needles_smollm2")["results"]
    own, full = (
        round(20 * found(rows, system=system, mode="aware", samples=20)["score"])
        for system in ("snapstream", "full")
    )
    yield f"finds {own} of 20 numbers, the full cache without a\nbudget {full} "


def sparse_text() -> Iterator[str]:
    rows = report("quality", "sparse_prefill_qwen")["summary"]
    text, keys = (found(rows, kind=kind, way="blocks") for kind in ("text", "keys"))
    more = (f"{nats(row['more'])} ({nats(row['more_se'])})" for row in (text, keys))
    counts = (
        sum(round(row["found"] * row["answers"]) for row in rows if _is_number(row, way))
        for way in ("everything", "blocks", "newest")
    )
    yield "text loses {} nats a token, numbers {}; {}, {} and {}".format(*more, *counts)


def sparse_key() -> Iterator[str]:
    """How much likelier the right pass key is by chosen blocks than by the newest positions."""
    rows = report("quality", "sparse_prefill_qwen")["rows"]
    lost = {
        (row["seed"], row["way"]): part["nats"] / part["tokens"]
        for row in rows
        for part in row["parts"]
        if part["kind"] == "needle"
    }
    seeds = {row["seed"] for row in rows}
    yield f"key {mean([lost[seed, 'newest'] - lost[seed, 'blocks'] for seed in seeds])} nats"


def _is_number(row: Row, way: str) -> bool:
    return row["way"] == way and row["kind"] in ("needle", "keys")


@pytest.mark.parametrize("claim", [sparse_needles, sparse_text, sparse_key])
def test_a_sentence_of_the_page_is_the_published_result(
    claim: Callable[[], Iterator[str]],
) -> None:
    (sentence,) = claim()
    assert sentence in (ROOT / "docs" / "speed.md").read_text()
