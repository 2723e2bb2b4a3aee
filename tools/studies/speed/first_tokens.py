"""Times the first tokens of prompts, by a build on OpenVINO in bf16 and by OpenVINO GenAI in turn.

usage: python -m tools.studies.speed.first_tokens BUILD CHECKPOINT --openvino-python PYTHON \
           --tokens N [N ...] --rounds N --out FILE

BUILD: of --target openvino --weights dequantize --batch 1. CHECKPOINT: the same model for OpenVINO
GenAI, converted below --work with fp32 weights, and run in bf16. Both are loaded at the same time,
and one runs at a time; every second round goes backwards. Prompts are random tokens. The file gets
each time, and the median of the rounds' ratios.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tools.studies.speed.peers import openvino_peer, snapexport_build
from tools.studies.speed.peers.process import Variant, Worker

OURS, PEER = "snapexport", "OpenVINO GenAI"
TOKENS = 100, 30_000
"""Of which prompts are drawn."""


def loaded(given: argparse.Namespace) -> dict[str, Worker]:
    """Both systems, each in its process."""
    ours = {"build": str(given.build.absolute()), "backend": "openvino", "precision": "bf16"}
    files = given.work / "first_tokens"
    files.mkdir(parents=True, exist_ok=True)
    peer = {"model": str(given.checkpoint.absolute()), "directory": str(files.absolute())}
    peer |= {"weights": "fp32", "precision": "bf16"}
    listed: list[tuple[str, Path, Any, dict[str, Any]]] = [
        (OURS, Path(sys.executable), snapexport_build, ours),
        (PEER, given.openvino_python, openvino_peer, peer),
    ]
    return {
        name: Worker(Variant(name, 32, python, of.__file__, options | {"threads": 2}, ()))
        for name, python, of, options in listed
    }


def measured(workers: dict[str, Worker], tokens: int, rounds: int) -> dict[str, Any]:
    """Seconds of each round, and of the one beside the other's."""
    draw = np.random.default_rng(0)
    seconds: dict[str, list[float]] = {name: [] for name in workers}
    for number in range(-1, rounds):  # the first one only warms up
        for name in list(workers)[:: 1 if number % 2 else -1]:
            prompt = draw.integers(*TOKENS, tokens).tolist()
            took = workers[name].ask("first_token", tokens=prompt)
            seconds[name] += [round(took, 3)] if number >= 0 else []
    pairs = zip(seconds[OURS], seconds[PEER], strict=True)
    return {**seconds, "ratio": round(statistics.median(a / b for a, b in pairs), 2)}


def main() -> None:
    """Measure each length."""
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("build", type=Path)
    made.add_argument("checkpoint", type=Path)
    made.add_argument("--openvino-python", type=Path, required=True)
    made.add_argument("--tokens", type=int, nargs="+", default=[1000, 7900])
    made.add_argument("--rounds", type=int, default=5)
    made.add_argument("--work", type=Path, default=Path("build/bench"))
    made.add_argument("--out", type=Path, required=True)
    given = made.parse_args()
    workers, report = loaded(given), dict[str, Any](command=" ".join(sys.argv[1:]))
    try:
        for tokens in given.tokens:
            report[str(tokens)] = measured(workers, tokens, given.rounds)
            given.out.write_text(json.dumps(report, indent=1) + "\n")
    finally:
        for worker in workers.values():
            worker.close()


if __name__ == "__main__":
    main()
