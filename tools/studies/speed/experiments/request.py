"""Compares whole requests with other libraries: a prompt, and tokens that follow one by one.

Each system is loaded alone in a process of its own, answers, and ends, in each round anew. Prompts
are random tokens, or ask for a number in a text: those of a round are the same for all systems, and
none comes twice.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from snapexport.compare.documents import lines_of, open_tokenizer, read_documents
from snapexport.measure.bench.results import Column, Table
from snapexport.measure.bench.turns import Row, six_digits
from snapexport.measure.eval.sample import Sample
from snapexport.measure.eval.tasks import tasks_in
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
    after eviction. warm: tokens of a request that comes first and is not counted. text: a folder of
    documents; prompts then ask for a number in them, and rows say whether it was found.
    """

    checkpoint: str
    prompts: tuple[int, ...]
    systems: tuple[str, ...]
    tokens: int = 256
    kv_budget: int = 1024
    rounds: int = 2
    warm: int = 600
    text: str = ""


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
    checkpoint = setup.model(options.checkpoint)
    prompts = _Questions(checkpoint, options.text) if options.text else _Prompts(checkpoint)
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
                found = prompts.judged(length, number, took.pop("tokens"))
                results.add("requests", labels | _times(took, options.tokens) | found)
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

    def judged(self, length: int, number: int, gave: list[int]) -> Row:
        """What a row says of an answer: nothing, of random tokens."""
        return {}


class _Questions(_Prompts):
    """For a number in a text, which a round hides at another place."""

    def __init__(self, checkpoint: Path, text: str) -> None:
        super().__init__(checkpoint)
        self._tokenizer = open_tokenizer(checkpoint)
        prose = lines_of(read_documents([Path(text)]))
        self._task = tasks_in(prose)["niah_single"]
        self._samples: dict[tuple[int, int], Sample] = {}

    def get(self, length: int, number: int) -> list[int]:
        if number < 0:
            return super().get(length, number)
        sample = self._sample(length, number)
        return [*sample.context_ids, *sample.question_ids]

    def judged(self, length: int, number: int, gave: list[int]) -> Row:
        text = self._tokenizer.decode(gave)
        return {"found": self._sample(length, number).score(text) == 1, "answer": text}

    def _sample(self, length: int, number: int) -> Sample:
        if (length, number) not in self._samples:
            self._samples[length, number] = self._task.sample(self._tokenizer, number, length)
        return self._samples[length, number]


def _times(took: Row, tokens: int) -> Row:
    """Of a request. cpu: seconds of the processor."""

    def times(first: float, last: float, prefix: str = "") -> Row:
        found = {"ttft": first, "step": (last - first) / (tokens - 1), "request": last}
        return {prefix + name: six_digits(one) for name, one in found.items()}

    of_cpu = times(took["first_cpu"], took["last_cpu"], "cpu_")
    memory = {name: took[name] for name in ("peak_bytes", "pss_bytes")}
    return times(took["first"], took["last"]) | of_cpu | memory


_KINDS = "ttft", "step", "request", "cpu_ttft", "cpu_step", "cpu_request"
_MEMORY = "peak_bytes", "pss_bytes"


def summary(sections: Row) -> list[Row]:
    """The least of the rounds, by system and prompt, and the answers that were right."""
    found: dict[tuple[str, int], list[Row]] = {}
    for row in sections.get("requests", []):
        found.setdefault((row["system"], row["prompt"]), []).append(row)
    return [
        {"system": system, "prompt": prompt, "rounds": len(rows)}
        | {kind: min(row[kind] for row in rows) for kind in (*_KINDS, *_MEMORY)}
        | ({"found": sum(row["found"] for row in rows)} if "found" in rows[0] else {})
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


def question_tables(report: Row) -> Iterator[Table]:
    """A row for each system, of one length of prompts."""
    columns: dict[str, Column] = {
        "": lambda row: row["system"],
        "TTFT, s": lambda row: f"{row['ttft']:.1f}",
        "of the processor": lambda row: f"{row['cpu_ttft']:.1f}",
        "step, ms": lambda row: f"{1e3 * row['step']:.1f}",
        "of the processor ": lambda row: f"{1e3 * row['cpu_step']:.1f}",
        "memory, GB": lambda row: f"{1e-9 * row['peak_bytes']:.2f}",
        "found": lambda row: f"{row['found']} of {row['rounds']}",
    }
    rows = sorted(report["summary"], key=lambda row: _place(report, row))
    yield Table.of("question", rows, columns)


def _place(report: Row, row: Row) -> int:
    systems: list[str] = report["settings"]["systems"]
    return systems.index(row["system"])


def _column(values: Sequence[float | None], digits: int) -> list[str]:
    """The least value in bold."""
    texts = ["" if one is None else f"{one:.{digits}f}" for one in values]
    least = min((one for one in values if one is not None), default=None)
    best = "" if least is None else f"{least:.{digits}f}"
    return [f"**{text}**" if text and text == best else text for text in texts]


OURS = (
    "snapexport fp32, SnapStream",
    "snapexport fp32, SnapStream, packed",
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
    "mobius fp32, static cache",
    "mobius the file's, static cache",
    "llama.cpp F16",
    "llama.cpp Q8_0",
    "llama.cpp Q4_0",
)

IN_GENAI = (
    "snapexport int4 in onnxruntime-genai",
    "snapexport int4, SnapStream in blocks",
    "snapexport the file's in onnxruntime-genai",
    "snapexport the file's, SnapStream in blocks",
    "onnxruntime-genai int4",
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
        (*OURS[3:5], *OURS[6:], *OTHERS[3:7], OTHERS[8], OTHERS[-1]),
        rounds=1,
    ),
)
# Builds that stock onnxruntime-genai runs, beside a model of its own builder and our runtime.
QUESTION = replace(
    REQUEST,
    help="questions about long texts to builds in onnxruntime-genai, and to its own model",
    cpu=Options(
        "build/real-model/SmolLM2-135M-Instruct.Q4_1.gguf",
        (7900,),
        IN_GENAI,
        tokens=32,
        text="build/real-model/documents",
    ),
    quick=Options("small", (300,), IN_GENAI, tokens=6, kv_budget=128, warm=20),
    tables=question_tables,
)
QUESTION_QWEN = replace(
    QUESTION,
    help="the same of Qwen2.5-Coder-0.5B",
    cpu=replace(
        QUESTION.cpu,
        checkpoint="build/real-model/qwen2.5-coder-0.5b-instruct.Q4_K_M.gguf",
        prompts=(8000,),
    ),
)
