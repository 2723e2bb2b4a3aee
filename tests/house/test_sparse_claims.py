"""What the page of speed says of sparse prefill's quality is what the results say."""

from collections.abc import Callable, Iterator

import pytest

from tests.house.test_result_pages import ROOT, Row, found, line, mean, nats, report


def sparse_losses() -> Iterator[str]:
    """A row for each length: what the chosen blocks lose, and the numbers found in each way."""
    for name in ("sparse_prefill_qwen", "sparse_prefill_qwen_16000", "sparse_prefill_qwen_32000"):
        whole = report("quality", name)
        rows = whole["summary"]
        text, keys = (found(rows, kind=kind, way="blocks") for kind in ("text", "keys"))
        counts = (
            sum(round(row["found"] * row["answers"]) for row in rows if _is_number(row, way))
            for way in ("everything", "blocks", "newest")
        )
        asked = sum(row["answers"] for row in rows if _is_number(row, "blocks"))
        more = (f"{nats(row['more'])} ({nats(row['more_se'])})" for row in (text, keys))
        sizes = f"{whole['length']:,}", f"{whole['budget']:,}", text["samples"]
        yield line(*sizes, *more, asked, *counts)


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


@pytest.mark.parametrize("claim", [sparse_losses, sparse_key])
def test_what_the_page_says_is_the_published_result(claim: Callable[[], Iterator[str]]) -> None:
    assert "\n".join(claim()) in (ROOT / "docs" / "speed.md").read_text()
