"""Measures decode with drafts from prompt lookup, on tasks that repeat their prompt and on others.

Builds of several tokens a step beside one of a single token, in turn. The checkpoint has to be a
real language model: what random weights write can't be drafted.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

from snapexport.builder import BuildOptions
from snapexport.builder import run as run_build
from snapexport.contract.build_directory import Build
from snapexport.measure.bench.results import Column, Table
from snapexport.measure.bench.turns import Case, Row, Timed, singles, six_digits
from snapexport.runtime.chat.template_files import has_template
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.request import Completion, Request, SamplingParams
from tools.studies.speed.record import Results
from tools.studies.speed.setup import Experiment, Setup

_CODE = """\
def total_price(items, tax_rate):
    total = 0.0
    for item in items:
        if item.quantity > 0:
            total += item.price * item.quantity
    if total > 100.0:
        total = total * 0.95
    return total * (1.0 + tax_rate)


def print_invoice(customer, items, tax_rate):
    print("Invoice for", customer.name)
    for item in items:
        print(item.name, item.quantity, item.price * item.quantity)
    print("Total:", total_price(items, tax_rate))
"""
_TEXT = """\
The old harbour lies where the river meets the sea. For three hundred years its quays were the \
only way into the town, and everything that people ate, wore or burnt came over them. Then the \
railway was built, and within twenty years most of the captains had sold their ships. The \
warehouses stood empty until the fifties, when a company from the capital turned two of them into \
a cannery. It closed in 1987, because the herring had moved north and the harbour had silted up. \
Ten years ago the town council bought the ruins for a single coin. It dredged the basin, repaired \
the lock, and let the ground floors to boat builders who wanted to learn the old trade. The upper \
floors became flats. Today forty families live there, and the school of boat building has more \
applicants than places. Not everybody is content. Rents in the streets behind the quay have \
doubled, and the fishermen who are left complain that the new yachts take their moorings. The \
council answers that without the moorings there would be no money for the lock. Next spring the \
citizens will vote on whether a second basin should be dug, which would cost eleven million.
"""
TASKS = {
    "edit code": "Rewrite this Python code with the variable total renamed to amount. Print the "
    f"whole code and nothing else.\n\n```python\n{_CODE}```",
    "summary": f"Summarize this text in five sentences. Use the words of the text.\n\n{_TEXT}",
    "story": "Write a story of 200 words about a lighthouse keeper who finds a letter.",
}
NOTES = (
    "greedy, one request; seconds from the first token to the last",
    "the first round, in which step times are not known yet, counts like the others",
)


@dataclass(frozen=True)
class Options:
    """tokens_per_step: of the builds beside that of 1. tokens: of an answer."""

    checkpoint: str = "small"
    tokens_per_step: tuple[int, ...] = (4, 8)
    tokens: int = 200
    L_max: int = 2048
    kv_budget: int = 1024
    rounds: int = 3


def run(setup: Setup, options: Options, results: Results) -> None:
    """One task after the other."""
    results.note(*NOTES)
    builds = {count: _build(setup, options, count) for count in (1, *options.tokens_per_step)}
    llms = {count: LLM(build.directory, threads=setup.threads) for count, build in builds.items()}
    chats = has_template(builds[1].directory)
    for task, text in TASKS.items():
        found: dict[int, Completion] = {}
        cases = []
        for count, llm in llms.items():
            request = _request(llm, text, options.tokens, chats)
            labels = {"task": task, "tokens_per_step": count}
            timed = _timed(llm, request, found, count)
            cases.append(Case("decode", labels, timed, warm=False))
        results.measure("decode", singles(cases), options.rounds, setup.device.probes())
        for count, answer in found.items():
            results.add("answers", _answer(task, count, answer, found[1]))


def _build(setup: Setup, options: Options, tokens_per_step: int) -> Build:
    model = setup.model(options.checkpoint)
    out = setup.work / "builds" / f"{model.name}.{options.kv_budget}.{tokens_per_step}tokens"
    return run_build(
        BuildOptions.of(
            model=str(model),
            out=out,
            L_max=options.L_max,
            kv_budget=options.kv_budget,
            batch=1,
            tokens_per_step=tokens_per_step,
            link_weights=True,
            overwrite=True,
        )
    )


def _request(llm: LLM, text: str, tokens: int, chats: bool) -> Request:
    """chats: in the checkpoint's chat template."""
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    if chats:
        return llm.read_chat([{"role": "user", "content": text}], params)
    return llm.read(text, params)


def _timed(llm: LLM, request: Request, found: dict[int, Completion], count: int) -> Timed:
    """Times an answer's later tokens, and notes the answer."""

    def seconds() -> float:
        tokens: list[int] = []
        first, drafted, accepted = 0.0, 0, 0
        for delta in llm.stream(request):
            first = first or time.perf_counter()
            tokens += delta.token_ids
            drafted, accepted = drafted + delta.drafted, accepted + delta.accepted
        last = time.perf_counter()
        found[count] = Completion(
            request.prompt_token_ids, "", tuple(tokens), "length", (), drafted, accepted
        )
        return last - first

    return seconds


def _answer(task: str, count: int, answer: Completion, single: Completion) -> Row:
    later = len(answer.token_ids) - 1
    return {
        "task": task,
        "tokens_per_step": count,
        "prompt_tokens": len(answer.prompt_token_ids),
        "drafted": answer.drafted,
        "accepted": answer.accepted,
        "tokens_a_step": six_digits(later / (later - answer.accepted)),
        "same": answer.token_ids == single.token_ids,
    }


def summary(sections: Row) -> list[Row]:
    """Times as fast as the build of a single token."""
    seconds = {
        (row["task"], row["tokens_per_step"]): row["seconds"]["median"]
        for row in sections.get("decode", [])
    }
    return [
        {"task": task, "tokens_per_step": q, "speedup": six_digits(seconds[task, 1] / one)}
        for (task, q), one in seconds.items()
        if q > 1
    ]


def tables(report: Row) -> Iterator[Table]:
    """A row for each task and build."""
    decode = {(row["task"], row["tokens_per_step"]): row for row in report["sections"]["decode"]}
    speedup = {(row["task"], row["tokens_per_step"]): row["speedup"] for row in report["summary"]}

    def key(row: Row) -> tuple[str, int]:
        return row["task"], row["tokens_per_step"]

    columns: dict[str, Column] = {
        "task": lambda row: str(row["task"]),
        "tokens a step, at most": lambda row: str(row["tokens_per_step"]),
        "drafted": lambda row: str(row["drafted"]),
        "right": lambda row: str(row["accepted"]),
        "tokens a step": lambda row: f"{row['tokens_a_step']:.2f}",
        "seconds": lambda row: f"{decode[key(row)]['seconds']['median']:.2f}",
        "times as fast": lambda row: f"{speedup.get(key(row), 1):.2f}",
        "same tokens": lambda row: "yes" if row["same"] else "no",
    }
    yield Table.of("drafts from prompt lookup", report["sections"]["answers"], columns, [])


SPECULATION = Experiment(
    help="decode with drafts from prompt lookup, beside single tokens",
    cpu=Options(),
    quick=Options(tokens_per_step=(4,), tokens=20, L_max=1024, kv_budget=128, rounds=1),
    run=run,
    summary=summary,
    tables=tables,
)
