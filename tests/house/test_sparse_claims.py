"""What the page of speed says of sparse prefill's quality is what the results say."""

import statistics
from collections.abc import Iterator
from itertools import product

from tests.house.results import ROOT, found, line, nats, report
from tests.house.test_result_pages import mean

LENGTHS = "sparse_prefill_qwen", "sparse_prefill_qwen_16000", "sparse_prefill_qwen_32000"


def sparse_losses() -> Iterator[str]:
    """A row for each length: what the chosen blocks lose, and the numbers found in each way."""
    for name in LENGTHS:
        rows = (whole := report("quality", name))["summary"]
        text, keys = (found(rows, kind=kind, way="blocks") for kind in ("text", "keys"))
        asked = {kind: found(rows, kind=kind)["answers"] for kind in ("needle", "keys")}
        counts = (
            sum(round(found(rows, kind=kind, way=way)["found"] * n) for kind, n in asked.items())
            for way in ("everything", "blocks", "newest")
        )
        more = (f"{nats(row['more'])} ({nats(row['more_se'])})" for row in (text, keys))
        sizes = f"{whole['length']:,}", f"{whole['budget']:,}", text["samples"]
        yield line(*sizes, *more, sum(asked.values()), *counts)


def blocks_ahead() -> Iterator[str]:
    """Nats that the chosen blocks save against the newest positions, beyond two errors."""
    for name, kind in product(LENGTHS, ("text", "needle", "keys", "variables")):
        lost = {
            (row["seed"], row["way"]): statistics.fmean(
                part["nats"] / part["tokens"] for part in row["parts"] if part["kind"] == kind
            )
            for row in report("quality", name)["rows"]
        }
        ahead = [one - lost[seed, "blocks"] for (seed, way), one in lost.items() if way == "newest"]
        if abs(statistics.fmean(ahead)) > 2 * statistics.stdev(ahead) / len(ahead) ** 0.5:
            yield mean(ahead)


def test_losses_and_leads_of_the_page_are_those_of_the_results() -> None:
    page = (ROOT / "tools" / "studies" / "speed" / "details.md").read_text()
    assert "\n".join(sparse_losses()) in page
    prose, (key, text, variables) = " ".join(page.split()), blocks_ahead()
    assert f"by {key} nats a token on a pass key at 8,000 tokens and {text} on text" in prose
    assert f"worse by {variables.removeprefix('-')} on variables there" in prose
