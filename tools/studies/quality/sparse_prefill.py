"""Measures what sparse prefill loses: running text, needles and variables, at one length.

    python -m tools.studies.quality.sparse_prefill BUILD --documents FOLDER ... \
        --work FOLDER --out FILE

BUILD has `--target openvino --prefill-budget N` and a cache for whole prompts. Chunks attend to
everything, to the blocks of the budget, or to as many positions of the newest blocks and the first
one (the same graph with another attribute). A prompt's last chunk attends to everything each time,
and its graph is changed to give the logits of all its tokens.

A sample is a document with a pass key, numbers of 8 keys and assignments of variables between its
lines, and questions with their right answers after it. What counts is the likelihood of the answers
and of the document's text in the last chunk. Every way of a sample is a line of the journal in
--work, so that a run that was stopped goes on.
"""

import argparse
import json
import math
import os
import shutil
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import onnx
from onnx import helper
from tokenizers import Tokenizer

from snapexport.compare.documents import read_documents
from snapexport.contract import names
from snapexport.contract.build_directory import Build
from snapexport.contract.pieces import CHUNK
from snapexport.measure.eval.haystack import Draws, join_words
from snapexport.measure.eval.sample import most
from snapexport.methods.sparse_prefill.spec import GRAPH, SparsePrefillOptions, sparse_prefill
from snapexport.runtime.chat.chat_prompts import ChatPrompts
from snapexport.runtime.engine.bound_graph import BoundGraph
from snapexport.runtime.engine.chunks import Chunks
from snapexport.runtime.engine.executor import Executor
from snapexport.runtime.engine.open_executor import Precision, open_executor
from snapexport.runtime.openvino.backend import OpenVinoBackend
from snapexport.runtime.requests.prompts import load_tokenizer
from snapexport.runtime.requests.sampling import log_softmax

WAYS = "everything", "blocks", "newest"
KEYS, HOPS = 8, 4
PRECISION: Precision = "bf16"
WIDEST = 160
LEAST = 120_000
"""Characters of a document, so that no sample repeats a line."""
LATEST = 0.9
"""Where the last needle may be, as a share of the lines: not in the last chunk."""

Row = dict[str, Any]


class Question(NamedTuple):
    """beginning: of the answer, which is given."""

    kind: str
    text: str
    beginning: str
    answer: str


class Turns(NamedTuple):
    """What a chat template writes before a user's message, after it, and after an answer."""

    before: str
    after: str
    between: str


class Prompt(NamedTuple):
    """context: tokens before the questions. answers: kind, first token, and the one after it."""

    ids: list[int]
    context: int
    answers: list[tuple[str, int, int]]


def needles(draws: Draws, keys: int) -> tuple[list[str], list[Question]]:
    """Lines in the order of the text, and what is asked about them.

    A pass key, numbers of several keys, of which some are asked for, and a value that goes from
    variable to variable.
    """
    passkey, value = draws.number(5), draws.number(5)
    numbers = [(draws.key(), draws.number(7)) for _ in range(KEYS)]
    variables = [draws.variable() for _ in range(HOPS + 1)]
    chain = [f"VAR {variables[0]} = {value}\n"]
    chain += [f"VAR {name} = VAR {source}\n" for source, name in pairwise(variables)]
    others = [f"The special magic number for {key} is {number}.\n" for key, number in numbers]
    others.append(f"The pass key is {passkey}. Do not forget: {passkey} is the pass key.\n")
    draws.rng.shuffle(others)
    is_chain = [True] * len(chain) + [False] * len(others)
    draws.rng.shuffle(is_chain)
    lines = [chain.pop(0) if one else others.pop(0) for one in is_chain]
    asked = [Question("needle", "What is the pass key?", "The pass key is", f" {passkey}")]
    for key, number in draws.rng.sample(numbers, keys):
        beginning = f"The special magic number for {key} is"
        question = f"What is the special magic number for {key} in the text?"
        asked.append(Question("keys", question, beginning, f" {number}"))
    question = f"Which variables have the value {value}, directly or through other variables?"
    beginning = f"The {len(variables)} variables with the value {value} are"
    asked.append(Question("variables", question, beginning, " " + join_words(variables)))
    return lines, asked


def prompt(
    lines: Sequence[str], seed: int, tokenizer: Tokenizer, turns: Turns, tokens: int, keys: int = 2
) -> Prompt:
    """At most so many tokens: a part of a document with needles, questions and answers."""
    draws = Draws("sparse_prefill", seed)
    hidden, asked = needles(draws, keys)
    shares = sorted(draws.rng.random() * LATEST for _ in hidden)
    first = draws.rng.randrange(len(lines) // 8)

    def encoded(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    def context(count: int) -> list[int]:
        parts, done = [turns.before, "Keep what is hidden in this text in mind.\n"], 0
        for share, needle in zip(shares, hidden, strict=True):
            cut = int(share * count)
            parts += [*lines[first + done : first + cut], needle]
            done = cut
        return encoded("".join((*parts, *lines[first + done : first + count])))

    tail: list[int] = []
    answers = []
    for question in asked:
        given = turns.between if tail else ""
        tail += encoded(given + question.text + turns.after + question.beginning)
        wanted = encoded(question.answer)
        answers.append((question.kind, len(tail), len(tail) + len(wanted)))
        tail += wanted
    count = most(lambda n: len(context(n)), tokens - len(tail), tokens // 16)
    ids = context(count)
    moved = [(kind, start + len(ids), end + len(ids)) for kind, start, end in answers]
    return Prompt(ids + tail, len(ids), moved)


def turns_of(build: Build) -> Turns:
    """The build's chat template, taken apart."""
    chat = ChatPrompts.open(build.directory)
    parts = ("first-message", "an-answer", "second-message")
    roles = ("user", "assistant", "user")
    messages = [{"role": r, "content": part} for r, part in zip(roles, parts, strict=True)]
    before, rest = chat.template.render(messages, True).split(parts[0])
    after, rest = rest.split(parts[1])
    return Turns(before, after, rest.split(parts[2])[0])


class Ways:
    """An executor whose chunks can be taken in each way.

    All share the chunks before the first sparse one.
    """

    def __init__(self, build: Build, work: Path, threads: int) -> None:
        sparse = sparse_prefill(build.manifest.graph_options, build.manifest.prefill_chunk)
        assert sparse, "the build has a budget"
        opened = open_executor(
            _with_all_logits(build, work),
            backend="openvino",
            threads=threads,
            precision=PRECISION,
            role="prefill",
        )
        assert isinstance(opened, Executor)
        self._executor = opened
        taker = opened._takers[CHUNK]
        assert isinstance(taker, Chunks) and taker._inner
        self._taker, self._chunk = taker, sparse.chunk
        self._shared = sparse.budget - sparse.budget % sparse.chunk + sparse.chunk
        newest = _edited(build, work / "newest.build", GRAPH, _latest(sparse.blocks - 1))
        backend = OpenVinoBackend(newest, taker._loaded.graphs, threads, None, PRECISION)
        entry = build.manifest.graphs[GRAPH]
        given = taker._inner.buffers | taker._loaded.weights
        graphs = None, taker._inner, BoundGraph(backend, GRAPH, entry, given)
        self._graphs = dict(zip(WAYS, graphs, strict=True))

    def losses(self, way: str, asked: Prompt) -> list[Row]:
        """Of the text and each answer: tokens, nats, and the share that are likeliest."""
        cache = self._taker.cache
        self._taker._inner = self._graphs[way]
        cache.begin()
        del cache._held[self._shared :]
        self._executor.prefill_prompt(0, asked.ids)
        start = len(asked.ids) - self._chunk
        logits = self._taker._whole.arrays[names.LOGITS]
        found = []
        for kind, first, end in (("text", start + 1, asked.context), *asked.answers):
            assert start < first < end, "questions and answers fit into the last chunk"
            rows = log_softmax(logits[first - 1 - start : end - 1 - start])
            wanted = asked.ids[first:end]
            nats = [-float(row[token]) for row, token in zip(rows, wanted, strict=True)]
            right = [int(row.argmax()) == token for row, token in zip(rows, wanted, strict=True)]
            counts = {"tokens": len(wanted), "nats": round(sum(nats), 5)}
            found.append({"kind": kind, **counts, "right": round(statistics.fmean(right), 4)})
        return found


def _with_all_logits(build: Build, work: Path) -> Build:
    """The build with a prefill graph that gives the logits of a whole chunk."""
    entry, chunk = build.manifest.graphs["prefill"], build.manifest.prefill_chunk

    def edit(graph: onnx.GraphProto) -> None:
        made = {node.output[0]: node for node in graph.node}
        last = made[names.LOGITS]  # Gather of the only row, of the head, of the last token
        head = made[last.input[0]]
        chosen = made[head.input[0]]
        assert last.op_type == chosen.op_type == "Gather"
        head.input[0] = chosen.input[0]
        axis = helper.make_tensor("all_logits_axis", onnx.TensorProto.INT64, [1], [0])
        graph.initializer.append(axis)
        whole = helper.make_node("Squeeze", [head.output[0], axis.name], [names.LOGITS])
        graph.node.remove(chosen)
        graph.node.remove(last)
        graph.node.append(whole)
        del graph.value_info[:]
        (output,) = (one for one in graph.output if one.name == names.LOGITS)
        output.type.tensor_type.shape.dim[0].dim_value = chunk

    outputs = [
        spec.model_copy(update={"shape": [chunk, *spec.shape[1:]]})
        if spec.name == names.LOGITS
        else spec
        for spec in entry.outputs
    ]
    changed = entry.model_copy(update={"outputs": outputs})
    graphs = build.manifest.graphs | {"prefill": changed}
    manifest = build.manifest.model_copy(update={"graphs": graphs})
    return replace(_edited(build, work / "logits.build", "prefill", edit), manifest=manifest)


def _latest(recent: int) -> Callable[[onnx.GraphProto], None]:
    """Make so many blocks the latest ones: then none is left to choose."""

    def edit(graph: onnx.GraphProto) -> None:
        chosen = [node for node in graph.node if node.op_type == "BlockSelect"]
        assert chosen, "the graph chooses blocks"
        for node in chosen:
            (attribute,) = (one for one in node.attribute if one.name == "recent")
            attribute.i = recent

    return edit


def _edited(
    build: Build, folder: Path, name: Any, edit: Callable[[onnx.GraphProto], None]
) -> Build:
    """The build with another graph; its weights are linked."""
    with suppress(FileNotFoundError):
        shutil.rmtree(folder)
    shutil.copytree(build.directory, folder, copy_function=os.link)
    file = folder / build.manifest.graphs[name].file
    model = onnx.load(file, load_external_data=False)
    edit(model.graph)
    file.unlink()
    onnx.save(model, file)
    return replace(build, directory=folder)


def measured(given: argparse.Namespace, done: set[tuple[int, str]]) -> Iterator[Row]:
    """Samples in turn, each in all ways."""
    build = Build.open(given.build)
    tokenizer, turns = load_tokenizer(build.directory), turns_of(build)
    assert tokenizer
    texts = [one for one in read_documents(given.documents) if len(one.text) > LEAST]
    ways = Ways(build, given.work, given.threads)
    for seed in range(given.samples):
        document = texts[(7 * seed + seed // len(texts)) % len(texts)]
        lines = [f"{line[:WIDEST]}\n" for line in document.text.splitlines() if line.strip()]
        asked = prompt(lines, seed, tokenizer, turns, given.length, given.keys)
        for way in WAYS:
            if (seed, way) not in done:
                labels = {"seed": seed, "document": document.name, "way": way}
                yield labels | {"length": len(asked.ids), "parts": ways.losses(way, asked)}


def summary(rows: Sequence[Row]) -> Iterator[Row]:
    """Each kind and way: found answers, nats a token, and how many more than with everything.

    Standard errors are over samples, which may have several answers of a kind.
    """
    seeds = sorted({row["seed"] for row in rows})
    ways = {
        seed: {row["way"]: row["parts"] for row in rows if row["seed"] == seed} for seed in seeds
    }
    whole = [found for found in ways.values() if set(found) == set(WAYS)]
    kinds = dict.fromkeys(part["kind"] for found in whole for part in found[WAYS[0]])
    for kind in kinds:
        of = {way: [_of(kind, found[way]) for found in whole] for way in WAYS}
        for way, samples in of.items():
            more = [own[0] - base[0] for own, base in zip(samples, of[WAYS[0]], strict=True)]
            found = [one[1] for one in samples]
            yield {
                **{"kind": kind, "way": way, "samples": len(samples)},
                "answers": sum(one[3] for one in samples),
                "nats": round(statistics.fmean(one[0] for one in samples), 4),
                **{"more": round(statistics.fmean(more), 4), "more_se": _error(more)},
                **{"found": round(statistics.fmean(found), 4), "found_se": _error(found)},
                "right": round(statistics.fmean(one[2] for one in samples), 4),
            }


def _of(kind: str, parts: Sequence[Row]) -> tuple[float, float, float, int]:
    """Nats a token, the share of answers found, the share of likeliest tokens, and answers."""
    own = [part for part in parts if part["kind"] == kind]
    nats = statistics.fmean(part["nats"] / part["tokens"] for part in own)
    found = statistics.fmean(part["right"] == 1 for part in own)
    return nats, found, statistics.fmean(part["right"] for part in own), len(own)


def _error(values: Sequence[float]) -> float | None:
    if len(values) < 2:
        return None
    return round(statistics.stdev(values) / math.sqrt(len(values)), 4)


def main() -> None:
    """Measure what the journal lacks, and write all rows with their summary."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("--documents", type=Path, nargs="+", required=True)
    parser.add_argument("--length", type=int, default=8000, help="tokens of a prompt, at most")
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--keys", type=int, default=2, help="of 8 asked for in a sample")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    journal = given.work / f"sparse_prefill.{given.length}.jsonl"
    written = journal.read_text() if journal.is_file() else ""
    rows = [json.loads(line) for line in written.splitlines(keepends=True) if line.endswith("\n")]
    manifest = Build.open(given.build).manifest
    labels = {
        "length": given.length,
        "budget": manifest.graph_options.of(SparsePrefillOptions).prefill_budget,
    }
    with journal.open("w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
        for row in measured(given, {(row["seed"], row["way"]) for row in rows}):
            rows.append(row)
            print(json.dumps(row), file=file, flush=True)
            print(json.dumps(row), flush=True)
            report = labels | {"summary": list(summary(rows)), "rows": rows}
            given.out.write_text(json.dumps(report) + "\n")


if __name__ == "__main__":
    main()
