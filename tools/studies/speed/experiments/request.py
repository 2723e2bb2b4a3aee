"""Compares whole requests with other libraries: a prompt, and tokens that follow one by one.

Each system is loaded alone in a process of its own, answers, and ends, in each round anew. Prompts
are random tokens: those of a round are the same for all systems, and none comes twice.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from snapexport.measure.bench.results import Table
from snapexport.measure.bench.turns import Row, six_digits
from tools.studies.speed.experiments import peers
from tools.studies.speed.peers.process import Variant, Worker
from tools.studies.speed.record import Results
from tools.studies.speed.setup import Experiment, Setup

NOTES = (
    "OpenVINO GenAI has a cache of 8 bits and llama.cpp one of 16, as they are by default; all "
    "others have 32",
    "memory is the most that is resident while the request runs, files mapped included",
)
_TOKENS = 300, 32000
"""Of prompts: few vocabularies have special ones among them. A smaller one has its upper half."""


@dataclass(frozen=True)
class Options:
    """prompts: their lengths. tokens: that follow. kv_budget: cache slots of SnapStream, and tokens
    after eviction. warm: tokens of a request that comes first and is not counted.
    """

    checkpoint: str
    prompts: tuple[int, ...]
    systems: tuple[str, ...]
    tokens: int = 256
    kv_budget: int = 1024
    rounds: int = 2
    warm: int = 600


def run(setup: Setup, options: Options, results: Results) -> None:
    """A row of each system, prompt and round; every second round goes backwards."""
    results.note(*NOTES)
    scene = peers.Options(
        options.checkpoint,
        bits=(32, 16, 8, 4),
        contexts=(max(options.prompts),),
        prompts=options.prompts,
        kv_budget=options.kv_budget,
        systems=options.systems,
    )
    chosen = {one.name: one for one in peers.variants(setup, scene)}
    systems = [chosen[name] for name in options.systems if name in chosen]
    prompts = _Prompts(setup.model(options.checkpoint))
    for number in range(options.rounds):
        for variant in systems if number % 2 == 0 else reversed(systems):
            _requests(variant, number, prompts, options, results)


def _requests(
    variant: Variant, number: int, prompts: "_Prompts", options: Options, results: Results
) -> None:
    """The requests of a round to one system."""
    todo = {
        length: labels
        for length in options.prompts
        if not results.has(
            "requests", labels := variant.labels | {"prompt": length, "round": number}
        )
    }
    if not todo:
        return
    results.progress(variant.name, number, options.rounds)
    if (worker := peers.tried(results, variant, partial(Worker, variant))) is None:
        return
    try:
        if not number:
            results.add("versions", {"system": variant.name, **worker.versions})
        warm = partial(worker.request, prompts.get(options.warm, -1), 8)
        if peers.tried(results, variant, warm) is None:
            return
        for length, labels in todo.items():
            ask = partial(worker.request, prompts.get(length, number), options.tokens)
            if took := peers.tried(results, variant, ask):
                results.add("requests", labels | _times(took, options.tokens))
    finally:
        worker.close()


class _Prompts:
    """Random tokens of a checkpoint's vocabulary."""

    def __init__(self, checkpoint: Path) -> None:
        size: int = json.loads((checkpoint / "config.json").read_text())["vocab_size"]
        self._span = _TOKENS if size > _TOKENS[1] else (size // 2, size)

    def get(self, length: int, number: int) -> list[int]:
        """The same in all systems, and another in each round."""
        rng = np.random.default_rng((length, number + 1))
        tokens: list[int] = rng.integers(*self._span, length).tolist()
        return tokens


def _times(took: dict[str, float], tokens: int) -> Row:
    first, last = took["first"], took["last"]
    step = (last - first) / (tokens - 1)
    times = {"ttft": first, "step": step, "request": last}
    return {name: six_digits(one) for name, one in times.items()} | {
        "peak_bytes": took["peak_bytes"]
    }


_KINDS = "ttft", "step", "request", "peak_bytes"


def summary(sections: Row) -> list[Row]:
    """Medians of the rounds, by system and prompt."""
    found: dict[tuple[str, int], list[Row]] = {}
    for row in sections.get("requests", []):
        found.setdefault((row["system"], row["prompt"]), []).append(row)
    return [
        {"system": system, "prompt": prompt, "rounds": len(rows)}
        | {kind: median(row[kind] for row in rows) for kind in _KINDS}
        for (system, prompt), rows in found.items()
    ]


def tables(report: Row) -> Iterator[Table]:
    """A row for each system: three times for each prompt, and memory for the longest."""
    settings = report["settings"]
    prompts, found = settings["prompts"], report["summary"]
    columns = [
        (head, kind, prompt, scale, digits)
        for prompt in prompts
        for head, kind, scale, digits in (
            (f"{prompt:,} in: TTFT, s", "ttft", 1.0, 2),
            ("step, ms", "step", 1e3, 1),
            ("request, s", "request", 1.0, 1),
        )
    ]
    columns.append(("memory, GB", "peak_bytes", max(prompts), 1e-9, 2))
    rows = {(row["system"], row["prompt"]): row for row in found}
    names = [name for name in settings["systems"] if any(name == one for one, _ in rows)]
    cells = [names]
    for _, kind, prompt, scale, digits in columns:
        values = [rows.get((name, prompt)) for name in names]
        cells.append(_column([row and scale * row[kind] for row in values], digits))
    heads = ["", *(column[0] for column in columns)]
    failed = [f"- {row['system']}: {row['why']}" for row in report["sections"]["failed"]]
    notes = list(dict.fromkeys(failed))
    yield Table("request", heads, list(zip(*cells, strict=True)), notes)


def _column(values: Sequence[float | None], digits: int) -> list[str]:
    """The least value in bold."""
    texts = ["" if one is None else f"{one:.{digits}f}" for one in values]
    least = min((one for one in values if one is not None), default=None)
    best = "" if least is None else f"{least:.{digits}f}"
    return [f"**{text}**" if text and text == best else text for text in texts]


OURS = (
    "snapexport fp32, SnapStream",
    "snapexport int8, SnapStream",
    "snapexport int4, SnapStream",
    "snapexport the file's, SnapStream",
    "snapexport fp32, SnapStream, OpenVINO in bf16",
    "snapexport int8, SnapStream, OpenVINO in bf16",
    "snapexport int4, SnapStream, OpenVINO in bf16",
)
OTHERS = (
    "OpenVINO GenAI fp32",
    "OpenVINO GenAI bf16",
    "OpenVINO GenAI bf16, evicting",
    "OpenVINO GenAI int8",
    "OpenVINO GenAI int8, evicting",
    "OpenVINO GenAI int4",
    "OpenVINO GenAI int4, evicting",
    "onnxruntime-genai fp32",
    "onnxruntime-genai int4",
    "llama.cpp F16",
    "llama.cpp Q8_0",
    "llama.cpp Q4_0",
)

REQUEST = Experiment(
    help="whole requests of SmolLM2-135M beside other libraries, after `make real-model-quality`",
    cpu=Options("build/real-model/SmolLM2-135M-Instruct.Q4_1.gguf", (1000, 7900), (*OURS, *OTHERS)),
    quick=Options("small", (100, 300), (*OURS, *OTHERS), tokens=6, kv_budget=128, warm=20),
    run=run,
    summary=summary,
    tables=tables,
)
REQUEST_QWEN = replace(
    REQUEST,
    help="the same of Qwen2.5-Coder-0.5B",
    cpu=Options(
        "build/real-model/qwen2.5-coder-0.5b-instruct.Q4_K_M.gguf",
        (4000,),
        (*OURS[2:4], *OURS[5:], *OTHERS[3:7], OTHERS[8], OTHERS[-1]),
        rounds=1,
    ),
)
