"""What a user would take instead, on the same checkpoint, threads and prompts, in turn.

Each peer is a process of its own interpreter (`workers/`) and sleeps while another one is timed.
"""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from snapexport.bench.spread import rounded
from snapexport.contract.graph_options import GraphOptions
from snapexport.contract.manifest import Quantization

from .builds import IN_INT8, PLAIN
from .checkpoint import Name
from .report import Report
from .setup import Setup
from .turns import Case, Row, Timed
from .worker import Peer, PeerError, Worker

HELP = "decode and first token beside onnxruntime-genai, transformers, kvpress and llama.cpp"

NOTES = (
    "decoding behind long contexts: snapexport, transformers and kvpress stand behind caches of "
    "random numbers; onnxruntime-genai's generator can't, so that its graph is run by ONNX Runtime "
    "with caches bound in place, as its generator does; llama.cpp's cache is that of a prompt of "
    "1,024 tokens, loaded again and again to the positions behind",
    "kvpress decodes on as many entries as SnapKVPress keeps; its cache then grows",
    "llama.cpp has a cache of 16 bits, as it is by default; all others have 32",
)

SNAPSTREAM = "SnapStream"

T = TypeVar("T")


@dataclass(frozen=True)
class Options:
    """kv_budget: slots of SnapStream, and entries that kvpress keeps. bits: of the weights."""

    checkpoint: Name = "small"
    bits: tuple[int, ...] = (32, 4)
    contexts: tuple[int, ...] = (1024, 32768)
    prompts: tuple[int, ...] = (1024, 4096)
    kv_budget: int = 1024
    rounds: int = 5
    steps: int = 4
    prompt_rounds: int = 3


DEFAULT = Options()
QUICK = Options(contexts=(256, 1024), prompts=(128, 256), kv_budget=128, rounds=2, prompt_rounds=1)


def run(setup: Setup, options: Options, report: Report) -> None:
    """First tokens, then one context after the other."""
    report.notes.extend(NOTES)
    with ExitStack() as stack:
        workers = list(_loaded(contestants(setup, options), report, stack))
        draw = _prompts(setup, options)
        for prompt in options.prompts:
            cases = [
                Case(_labels(peer, prompt=prompt), timed, warm=False)
                for peer, worker in workers
                if peer.prompts
                and (timed := _tried(report, peer, partial(_first_token, worker, draw, prompt)))
            ]
            report.measure("first_token", cases, options.prompt_rounds)
        for context in options.contexts:
            cases = [
                Case(_labels(peer, context=context), step, options.steps)
                for peer, worker in workers
                if context in peer.contexts
                and (step := _tried(report, peer, partial(_step, worker, context)))
            ]
            report.measure("decode", cases, options.rounds)


def contestants(setup: Setup, options: Options) -> Iterator[Peer]:
    """Ours, then the others."""
    yield from _ours(setup, options)
    yield from _genai(setup, options)
    if 32 in options.bits:
        yield from _transformers(setup, options)
    yield from _llama_cpp(setup, options)


def _transformers(setup: Setup, options: Options) -> Iterator[Peer]:
    model = _model(setup, options)
    for cache in ("dynamic", "static", "compiled"):
        name, given = f"transformers, {cache}", model | {"cache": cache}
        prompts = cache != "compiled"  # which compiles decoding alone
        python = setup.peers_python
        yield Peer(name, 32, python, "hugging_face", given, options.contexts, prompts)
    given = model | {"cache": "dynamic", "kept": options.kv_budget}
    python = setup.kvpress_python
    yield Peer("kvpress SnapKVPress", 32, python, "hugging_face", given, options.contexts)


def _llama_cpp(setup: Setup, options: Options) -> Iterator[Peer]:
    common = _model(setup, options) | _files(setup) | {"longest": max(options.contexts)}
    for weights, bits in _of_bits({"F32": 32, "Q4_0": 4}, options):
        name, python = f"llama.cpp {weights}", setup.peers_python
        given = common | {"weights": weights}
        yield Peer(name, bits, python, "llama_cpp_peer", given, options.contexts)


def _ours(setup: Setup, options: Options) -> Iterator[Peer]:
    """prepack: a second copy of the weights, as the libraries have that lay them out anew. Those
    of 4 bits always are."""
    longest, python = max(options.contexts), Path(sys.executable)
    weights: dict[Quantization | None, int] = {None: 32, "int4": 4}
    for quantization, bits in _of_bits(weights, options):
        for cache, (budget, form, prepack) in _caches(options).items():
            if prepack and quantization:
                continue
            builds = setup.builds(options.checkpoint, weights=quantization)
            build = builds.get(longest, budget, form=form)
            directory = str(build.directory.absolute())
            given = {"build": directory, "threads": setup.threads, "prepack": prepack}
            name = f"snapexport {quantization or 'fp32'}, {cache}"
            yield Peer(name, bits, python, "ours", given, options.contexts)


def _caches(options: Options) -> dict[str, tuple[int | None, GraphOptions, bool]]:
    """Slots, how they are held, and whether weights are laid out anew."""
    budget = options.kv_budget
    return {
        SNAPSTREAM: (budget, PLAIN, False),
        f"{SNAPSTREAM}, prepacked": (budget, PLAIN, True),
        f"{SNAPSTREAM} in fp16": (budget, GraphOptions(cache_dtype="fp16"), False),
        f"{SNAPSTREAM} in int8": (
            budget,
            IN_INT8,
            False,
        ),
        "full": (None, PLAIN, False),
    }


def _genai(setup: Setup, options: Options) -> Iterator[Peer]:
    """The generator behind prompts and the shortest context, its graph behind all contexts."""
    python, prompt, longest = setup.peers_python, max(options.prompts), max(options.contexts)
    for precision, bits in _of_bits({"fp32": 32, "int4": 4}, options):
        name = f"onnxruntime-genai {precision}"
        common = _model(setup, options) | _files(setup) | {"precision": precision}
        given = common | {"longest": prompt, "graph": False}
        yield Peer(name, bits, python, "genai", given, options.contexts[:1])
        name, given = f"{name}, its graph", common | {"longest": longest, "graph": True}
        yield Peer(name, bits, python, "genai", given, options.contexts, prompts=False)


def _of_bits(weights: Mapping[T, int], options: Options) -> list[tuple[T, int]]:
    """Those that are asked for, with their bits."""
    return [(name, bits) for name, bits in weights.items() if bits in options.bits]


def _model(setup: Setup, options: Options) -> dict[str, Any]:
    model = setup.model(options.checkpoint)
    return {"model": str(model.absolute()), "threads": setup.threads}


def _files(setup: Setup) -> dict[str, Any]:
    """Where a peer puts the checkpoint in its own format."""
    return {"directory": str(setup.work.absolute() / "peers")}


def _loaded(
    peers: Iterable[Peer], report: Report, stack: ExitStack
) -> Iterator[tuple[Peer, Worker]]:
    """Those that can be; the report says why others can't."""
    for peer in peers:
        report.tell(f"loading {peer.name}", 0, 1)
        if worker := _tried(report, peer, partial(Worker, peer)):
            stack.callback(worker.close)
            report.sections["versions"].append({"peer": peer.name, **worker.versions})
            yield peer, worker


def _labels(peer: Peer, **at: int) -> Row:
    return {"peer": peer.name, "bits": peer.bits, **at}


def _tried(report: Report, peer: Peer, action: Callable[[], T]) -> T | None:
    """What it gives; None where the peer fails, which the report then tells."""
    try:
        return action()
    except PeerError as error:
        report.sections["failed"].append({"peer": peer.name, "why": error.message})
        return None


def _first_token(worker: Worker, draw: Callable[[int], list[int]], length: int) -> Timed:
    """Warmed up by one prompt; each has other tokens, since some remember what they have seen."""

    def timed() -> float:
        return worker.ask("first_token", tokens=draw(length))

    timed()
    return timed


def _step(worker: Worker, context: int) -> Timed:
    """Behind that many tokens, from then on."""
    worker.ask("fill", context=context)
    return partial(worker.ask, "step")


def _prompts(setup: Setup, options: Options) -> Callable[[int], list[int]]:
    """Random tokens by their number."""
    config = json.loads((setup.model(options.checkpoint) / "config.json").read_text())
    rng, vocab_size = np.random.default_rng(0), config["vocab_size"]

    def draw(length: int) -> list[int]:
        drawn: list[int] = rng.integers(3, vocab_size, length).tolist()
        return drawn

    return draw


def summary(report: Row) -> list[Row]:
    """Each step by that of SnapStream with weights of as many bits, at the same context."""
    ours = {
        (row["bits"], row["context"]): row["seconds"]["median"]
        for row in report["decode"]
        if row["peer"].startswith("snapexport") and row["peer"].endswith(SNAPSTREAM)
    }
    return [
        {
            "peer": row["peer"],
            "context": row["context"],
            "times_ours": rounded(row["seconds"]["median"] / ours[row["bits"], row["context"]]),
        }
        for row in report["decode"]
        if (row["bits"], row["context"]) in ours
    ]
