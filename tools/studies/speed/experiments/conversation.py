"""Measures the turns of one conversation: each onto the parked row of the turn before.

Beside some of them stands a prefill of as many tokens from the beginning, in the same process.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from snapexport.contract.graph_options import GraphOptions
from snapexport.measure.bench.results import Column, Table, mib
from snapexport.measure.bench.turns import Row, six_digits
from snapexport.methods.extend.spec import ExtendOptions
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.request import SamplingParams
from tools.studies.speed.memory import share
from tools.studies.speed.record import Results
from tools.studies.speed.setup import Experiment, Setup

NOTES = (
    "tokens are random; a prefill from the beginning is of other tokens, so that nothing is cached",
)


@dataclass(frozen=True)
class Options:
    """turns: of `tokens` new tokens each, and an answer. fresh: turns beside which a prompt as long
    is prefilled from the beginning."""

    checkpoint: str = "small"
    turns: int = 50
    tokens: int = 2000
    answer: int = 8
    fresh: tuple[int, ...] = (1, 5, 10)
    L_max: int = 32768
    kv_budget: int = 2048


def run(setup: Setup, options: Options, results: Results) -> None:
    """One conversation, turn after turn."""
    results.note(*NOTES)
    form = GraphOptions(methods=(ExtendOptions(extend=True),))
    build = setup.builds(options.checkpoint).get(options.L_max, options.kv_budget, form=form)
    llm = LLM(build.directory, threads=setup.threads, parked_rows=1)
    rng, conversation = np.random.default_rng(0), [3]
    vocabulary = build.manifest.model.vocab_size
    for turn in range(1, options.turns + 1):
        results.progress("turns", turn - 1, options.turns)
        conversation += rng.integers(3, vocabulary, options.tokens).tolist()
        seconds, answer = _answered(llm, conversation, options.answer)
        row: Row = {"turn": turn, "tokens": len(conversation), "seconds": six_digits(seconds)}
        row["anonymous"], _ = share()
        conversation += answer
        if turn in options.fresh:
            other: list[int] = rng.integers(3, vocabulary, int(row["tokens"])).tolist()
            row["fresh_seconds"] = six_digits(_fresh(llm, other))
        results.add("turns", row)


def _answered(llm: LLM, prompt: list[int], tokens: int) -> tuple[float, list[int]]:
    """Seconds to the first token, and the answer."""
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    answer: list[int] = []
    started, first = time.perf_counter(), 0.0
    for delta in llm.stream(prompt, params):
        first = first or time.perf_counter() - started
        answer += delta.token_ids
    return first, answer


def _fresh(llm: LLM, prompt: list[int]) -> float:
    """Seconds of a prefill by itself, past the parked rows."""
    started = time.perf_counter()
    llm.executor.prefill_prompt(0, prompt)
    return time.perf_counter() - started


def summary(sections: Row) -> list[Row]:
    """The last turn against the first, of the turns that go onto a row: the second is the first."""
    turns = [row for row in sections.get("turns", []) if row["turn"] > 1]
    if len(turns) < 2:
        return []
    few = max(1, len(turns) // 5)
    early, late = (
        float(np.median([row["seconds"] for row in part])) for part in (turns[:few], turns[-few:])
    )
    return [
        {"early": six_digits(early), "late": six_digits(late), "ratio": six_digits(late / early)}
    ]


def tables(report: Row) -> Iterator[Table]:
    """A row for each tenth turn, and for those beside a prefill."""
    rows = report["sections"]["turns"]
    shown = [row for row in rows if row["turn"] % 10 == 0 or "fresh_seconds" in row]
    columns: dict[str, Column] = {
        "turn": lambda row: str(row["turn"]),
        "tokens": lambda row: f"{row['tokens']:,}",
        "TTFT, s": lambda row: f"{row['seconds']:.2f}",
        "own memory, MiB": lambda row: mib(row["anonymous"]),
        "prefill from the beginning, s": lambda row: (
            f"{row['fresh_seconds']:.2f}" if "fresh_seconds" in row else ""
        ),
    }
    notes = [
        f"- the last fifth of the turns takes {row['ratio']:.2f} times the first fifth's time"
        for row in report["summary"]
    ]
    yield Table.of("turns of a conversation", shown, columns, notes)


CONVERSATION = Experiment(
    help="turns of a long conversation onto a parked row, beside prefill from the beginning",
    cpu=Options(),
    quick=Options(turns=4, tokens=40, fresh=(1, 2), L_max=512, kv_budget=128),
    run=run,
    summary=summary,
    tables=tables,
)
