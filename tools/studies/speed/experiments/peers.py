"""Compares with other libraries, on the same checkpoint, threads and prompts, in turn.

Each runs in a process of its own interpreter (`bench/peers/`), and sleeps while another is timed.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import TypeVar

import numpy as np

from snapexport.builder.options import usual_chunk
from snapexport.errors import UserError
from snapexport.measure.bench.results import Table
from snapexport.measure.bench.turns import Case, Row, Timed, singles, six_digits
from tools.studies.speed.peers import PLUGINS
from tools.studies.speed.peers.process import PeerError, Scene, Variant, Worker
from tools.studies.speed.record import Results, spread_ms
from tools.studies.speed.setup import Experiment, Setup

REFERENCE = "transformers, dynamic"
"""The system that others' answers are compared with."""

NOTES = (
    "decoding behind long contexts: snapexport, transformers and kvpress stand behind caches of "
    "random numbers; onnxruntime-genai's generator can't, so that its graph is run by ONNX Runtime "
    "with caches bound in place, as its generator does; llama.cpp's cache is that of a prompt of "
    "1,024 tokens, loaded again and again to the positions behind",
    "kvpress decodes on as many entries as SnapKVPress keeps; its cache then grows",
    "llama.cpp has a cache of 16 bits and OpenVINO GenAI one of 8, as they are by default; all "
    "others have 32",
)

T = TypeVar("T")


@dataclass(frozen=True)
class Options:
    """kv_budget: cache slots of SnapStream, and of kvpress. bits: of the weights.

    text: a file; each system goes on with `passages` passages of it, as long as the first of
    `prompts`, by `answer_tokens` tokens. Empty: answers are not compared. systems: names of those
    to measure; empty: all.
    """

    checkpoint: str = "small"
    bits: tuple[int, ...] = (32, 4)
    contexts: tuple[int, ...] = (1024, 32768)
    prompts: tuple[int, ...] = (1024, 4096)
    kv_budget: int = 1024
    rounds: int = 5
    steps: int = 4
    prompt_rounds: int = 3
    text: str = ""
    passages: int = 4
    answer_tokens: int = 48
    systems: tuple[str, ...] = ()


def run(setup: Setup, options: Options, results: Results) -> None:
    """The systems whose weights have equally many bits are loaded together, and take turns."""
    results.note(*NOTES)
    passages = _passages(setup, options)
    for bits in options.bits:
        with ExitStack() as stack:
            chosen = variants(setup, replace(options, bits=(bits,)))
            workers = list(_loaded(chosen, results, stack))
            _measure(setup, options, workers, results)
            _answer(workers, passages, options, results)


def _measure(
    setup: Setup, options: Options, workers: Iterable[tuple[Variant, Worker]], results: Results
) -> None:
    """First tokens, then one context after the other."""
    probes, first_token = setup.device.probes(), _first_token(setup, options)
    for prompt in options.prompts:
        cases = [
            Case("ttft", one.labels | {"prompt": prompt}, timed, warm=False)
            for one, worker in workers
            if one.prompts and (timed := tried(results, one, partial(first_token, worker, prompt)))
        ]
        results.measure("ttft", singles(cases), options.prompt_rounds, probes)
    for context in options.contexts:
        cases = [
            Case("decode", one.labels | {"context": context}, step, options.steps)
            for one, worker in workers
            if context in one.contexts
            and (step := tried(results, one, partial(_step, worker, context)))
        ]
        results.measure("decode", singles(cases), options.rounds, probes)


def variants(setup: Setup, options: Options) -> Iterator[Variant]:
    """The systems with the wanted weights: snapexport's, then the others."""
    scene = Scene(
        bits=options.bits,
        model=str(setup.model(options.checkpoint).absolute()),
        files=str(setup.work.absolute() / "peers"),
        threads=setup.threads,
        contexts=options.contexts,
        longest_prompt=max(options.prompts),
        kv_budget=options.kv_budget,
        builds=lambda weights, dtype, target: setup.builds(
            options.checkpoint,
            weights=weights,
            dtype=dtype,
            target=target,
            chunk=usual_chunk(target, dtype),
        ),
        gguf=options.checkpoint if options.checkpoint.endswith(".gguf") else None,
        peers_python=setup.peers_python,
        kvpress_python=setup.kvpress_python,
        openvino_python=setup.openvino_python,
        systems=options.systems,
    )
    for plugin in PLUGINS:
        for variant in plugin.variants(scene):
            if variant.bits in options.bits and scene.wants(variant.name):
                yield variant


def _loaded(
    variants: Iterable[Variant], results: Results, stack: ExitStack
) -> Iterator[tuple[Variant, Worker]]:
    """The systems that load; the results record the errors of the others."""
    for variant in variants:
        results.progress(f"loading {variant.name}", 0, 1)
        if worker := tried(results, variant, partial(Worker, variant)):
            stack.callback(worker.close)
            results.add("versions", {"system": variant.name, **worker.versions})
            yield variant, worker


def tried(results: Results, variant: Variant, action: Callable[[], T]) -> T | None:
    """The action's result; None if the peer fails, which the results record."""
    try:
        return action()
    except PeerError as error:
        results.add("failed", {"system": variant.name, "why": error.message})
        return None


def _first_token(setup: Setup, options: Options) -> Callable[[Worker, int], Timed]:
    """Times first tokens, after a warm-up at the shortest prompt.

    No prompt comes twice: some systems cache prefixes.
    """
    config = json.loads((setup.model(options.checkpoint) / "config.json").read_text())
    rng, vocab_size = np.random.default_rng(0), config["vocab_size"]

    def warmed(worker: Worker, length: int) -> Timed:
        def timed() -> float:
            return worker.ask("first_token", tokens=rng.integers(3, vocab_size, length).tolist())

        if length == min(options.prompts):
            timed()
        return timed

    return warmed


def _passages(setup: Setup, options: Options) -> list[list[int]]:
    """The beginning of the text, cut into prompts that do not overlap. Raises UserError."""
    if not options.text:
        return []
    from tokenizers import Tokenizer

    path, length = Path(options.text), options.prompts[0]
    if not path.is_file():
        raise UserError(f"{path} is no file", "name a text file, or an empty text")
    tokenizer = Tokenizer.from_file(str(setup.model(options.checkpoint) / "tokenizer.json"))
    ids: list[int] = tokenizer.encode(path.read_text(), add_special_tokens=False).ids
    if len(ids) < length * options.passages:
        raise UserError(
            f"{path} has {len(ids)} tokens, not {length * options.passages}",
            "name a longer text, or use fewer passages",
        )
    return [ids[length * n :][:length] for n in range(options.passages)]


def _answer(
    workers: Iterable[tuple[Variant, Worker]],
    passages: Sequence[Sequence[int]],
    options: Options,
    results: Results,
) -> None:
    """A row of each system and passage: the tokens that it goes on with."""
    for one, worker in workers:
        if not one.prompts:
            continue
        for number, passage in enumerate(passages):
            results.progress(f"answers of {one.name}", number, len(passages))
            if results.has("answers", labels := one.labels | {"passage": number}):
                continue
            answer = partial(worker.answer, passage, options.answer_tokens)
            if (tokens := tried(results, one, answer)) is not None:
                results.add("answers", labels | {"tokens": tokens})


def equal_tokens(answers: Iterable[Row]) -> dict[str, list[int]]:
    """By system, tokens before the first that differs from the reference's, of each passage."""
    rows = list(answers)
    reference = {row["passage"]: row["tokens"] for row in rows if row["system"] == REFERENCE}
    equal: dict[str, list[int]] = {}
    for row in rows:
        if right := reference.get(row["passage"]):
            pairs = zip(row["tokens"], right, strict=False)
            count = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
            equal.setdefault(row["system"], []).append(count)
    return equal


def _step(worker: Worker, context: int) -> Timed:
    """Times decode steps after `context` tokens."""
    worker.ask("fill", context=context)
    return partial(worker.ask, "step")


def summary(sections: Row) -> list[Row]:
    """Step time / SnapStream's step time, for the same bits of weights and context."""
    decode = sections.get("decode", [])
    ours = {
        (row["bits"], row["context"]): row["seconds"]["median"]
        for row in decode
        if row["system"].startswith("snapexport") and row["system"].endswith("SnapStream")
    }
    return [
        {
            "system": row["system"],
            "context": row["context"],
            "times_ours": six_digits(row["seconds"]["median"] / ours[row["bits"], row["context"]]),
        }
        for row in decode
        if (row["bits"], row["context"]) in ours
    ]


def tables(report: Row) -> Iterator[Table]:
    """A row for each system, columns for prompts and contexts."""
    sections, settings = report["sections"], report["settings"]
    prompts, contexts = settings["prompts"], settings["contexts"]
    first = {(row["system"], row["prompt"]): row for row in sections["ttft"]}
    decode = {(row["system"], row["context"]): row for row in sections["decode"]}
    times = {(row["system"], row["context"]): row["times_ours"] for row in report["summary"]}
    equal = equal_tokens(sections.get("answers", []))
    heads = ["", *(f"TTFT, {n:,}: s" for n in prompts)]
    heads += [head for n in contexts for head in (f"step, {n:,}: ms", "x SnapStream's")]
    if equal:
        heads.append(f"equal tokens of {settings['answer_tokens']}")
    cells = []
    for name in (row["system"] for row in sections["versions"]):
        cells.append([name])
        for n in prompts:
            row = first.get((name, n))
            cells[-1].append(f"{row['seconds']['median']:.2f}" if row else "")
        for n in contexts:
            ratio = times.get((name, n))
            cells[-1] += [spread_ms(decode.get((name, n))), f"{ratio:.2f}" if ratio else ""]
        if equal:
            cells[-1].append(", ".join(map(str, sorted(equal.get(name, [])))))
    notes = [f"- {row['system']}: {row['why']}" for row in sections["failed"]]
    pairs = {pair for row in sections["versions"] for pair in row.items() if pair[0] != "system"}
    if pairs:
        notes.append(f"- versions: {', '.join(f'{one} {found}' for one, found in sorted(pairs))}")
    yield Table("peers", heads, cells, notes)


PEERS = Experiment(
    help="decode and TTFT beside other libraries",
    cpu=Options(),
    quick=Options(
        contexts=(256, 1024), prompts=(128, 256), kv_budget=128, rounds=2, prompt_rounds=1
    ),
    run=run,
    summary=summary,
    tables=tables,
)
# CPUs usually run 4-bit weights, and the fixed cost of a node is small at Llama-3.2-1B's size.
PEERS1B = replace(
    PEERS,
    help="the same with 1.2 G parameters in 4 bits, at 1K",
    cpu=Options("1b", bits=(4,), contexts=(1024,), prompts=(1024,), prompt_rounds=1),
    quick=Options("1b", (4,), contexts=(256,), prompts=(128,), kv_budget=128, rounds=2),
)
# Real weights, so that answers can be compared. The last position of the model is 8,191.
PEERS_SMOLLM2 = replace(
    PEERS,
    help="the same with SmolLM2-135M and its answers, after `make real-model-quality`",
    cpu=Options(
        "build/real-model/SmolLM2-135M-Instruct.Q4_1.gguf",
        bits=(32, 16, 4),
        contexts=(1024, 7900),
        prompts=(1024, 7900),
        prompt_rounds=1,
        text="build/real-model/documents/debian-faq.txt",
    ),
)
