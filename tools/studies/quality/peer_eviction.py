"""Compares answers after eviction with OpenVINO GenAI's: the same prompts, as many tokens kept.

    python -m tools.studies.quality.peer_eviction BUILD CHECKPOINT --documents FOLDER ... \
        --openvino-python PEER/bin/python --work FOLDER --out FILE

BUILD has --baseline and runs in ONNX Runtime, with its own weights. CHECKPOINT is the same model in
float; optimum makes int8 of it, and GenAI calculates in bf16. It evicts by two windows, its own and
a given one. Numbers are looked for in a text, the question being in the prompt. GenAI tells no
likelihoods of a forced text. A run that was stopped goes on.
"""

import argparse
import json
from collections.abc import Collection, Hashable, Iterator
from dataclasses import dataclass
from itertools import product, takewhile
from pathlib import Path

from snapexport.contract.build_directory import Build
from snapexport.measure.eval.grid import Grid, make_grid
from snapexport.measure.eval.records import Journal, Outcome, outcome_rows
from snapexport.measure.eval.run import Evaluation
from snapexport.measure.options import EvalOptions
from tools.studies.speed.peers import openvino_peer
from tools.studies.speed.peers.process import Variant, Worker


@dataclass(frozen=True)
class Peer:
    """GenAI's cache of one kind. kept: tokens after eviction; None: all. window: that vote."""

    python: Path
    model: Path
    work: Path
    threads: int
    kept: int | None = None
    window: int | None = None

    @property
    def name(self) -> str:
        """With the window, if that is not GenAI's own."""
        name = "OpenVINO GenAI" + (", evicting" if self.kept else "")
        return name + (f", window {self.window}" if self.window else "")

    def opened(self) -> Worker:
        """Loaded in a process of its own."""
        options = {"model": str(self.model), "directory": str(self.work), "threads": self.threads}
        options |= {"weights": "int8", "precision": "bf16", "kept": self.kept}
        if self.window:
            options["window"] = self.window
        plugin = str(openvino_peer.__file__)
        return Worker(Variant(self.name, 8, self.python, plugin, options, ()))


def options_of(given: argparse.Namespace) -> EvalOptions:
    """What is asked, by our own evaluation's tasks."""
    return EvalOptions(
        tasks=("niah_single",),
        lengths=(given.length,),
        depths=(0.1, 0.3, 0.5, 0.7, 0.9),
        samples=given.samples // 5,
        modes=("aware",),
        policies=("full", "snapstream"),
        budgets=(given.kept,),
        documents=tuple(given.documents),
        continuation=0,
        seed=given.seed,
        threads=given.threads,
    )


def outcomes(
    grid: Grid, workers: dict[Peer, Worker], done: Collection[Hashable]
) -> Iterator[Outcome]:
    """What GenAI's caches write, prompt by prompt, all depths in turn."""
    requests, samples = grid.requests, grid.options.samples
    cells, ends = requests.cells(), frozenset(grid.build.manifest.model.eos_token_id)
    in_turn = [cell for start in range(samples) for cell in cells[start::samples]]
    for cell, (peer, worker) in product(in_turn, workers.items()):
        slots = peer.kept or cell.length
        if (peer.name, slots, "aware", cell.task, cell.length, cell.seed) in done:
            continue
        sample = requests.sample(cell)
        prompt = requests.request(sample, cell, "aware").prompt
        written = worker.answer(prompt, sample.max_tokens)
        ids = list(takewhile(lambda token: token not in ends, written))
        text = requests.tokenizer.decode(ids)
        labels = peer.name, slots, "aware", cell.task, cell.length, cell.seed, cell.depth
        scores = sample.score(text), sample.score_first(ids), sample.score_rest(ids)
        yield Outcome(*labels, *scores, text, sample.reference)


def measured(given: argparse.Namespace) -> Iterator[Outcome]:
    """Both libraries' answers, those of the journals first."""
    grid = make_grid(Build.open(given.build), options_of(given))
    journal = Journal(given.work / "genai", grid.fingerprint())
    known = [record for record in journal.records if isinstance(record, Outcome)]
    yield from known
    common = given.openvino_python, given.checkpoint, given.work, given.threads
    peers = [Peer(*common), Peer(*common, given.kept), Peer(*common, given.kept, given.window)]
    workers = {peer: peer.opened() for peer in peers}
    fresh = outcomes(grid, workers, {record.key for record in known})
    yield from (one for one in journal.record(fresh) if isinstance(one, Outcome))
    for worker in workers.values():
        worker.close()
    own = Evaluation(grid, given.work / "own").run()
    yield from (one for one in own if isinstance(one, Outcome))


def main() -> None:
    """Measure what the journals lack, and write a row for each cache."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--documents", type=Path, nargs="+", required=True)
    parser.add_argument("--openvino-python", type=Path, required=True)
    parser.add_argument("--length", type=int, default=4000)
    parser.add_argument("--kept", type=int, default=1024)
    parser.add_argument("--window", type=int, default=32, help="of GenAI's further row")
    parser.add_argument("--samples", type=int, default=20, help="a multiple of 5")
    parser.add_argument("--seed", type=int, default=900)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    report = {"length": given.length, "kept": given.kept, "seed": given.seed}
    records: list[Outcome] = []
    for record in measured(given):
        records.append(record)
        rows = outcome_rows(records)
        given.out.write_text(json.dumps(report | {"results": rows}, indent=1) + "\n")
        print(f"{record.system}, {record.seed}: {record.score}", flush=True)


if __name__ == "__main__":
    main()
