"""Compares the logits of a build's full cache with those of mobius' graph of a static cache.

usage: python -m tools.studies.quality.mobius_logits BUILD CHECKPOINT --work FOLDER --out FILE \
           --peers-python PEER/bin/python

BUILD: of the same checkpoint in fp32, with --policy full. A random prompt and the tokens after it
are given to both; mobius builds its graph where that is not done.
"""

import argparse
import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

PROMPT, STEPS = 512, 32
LOGITS = "mobius.npy"


def of_mobius(checkpoint: str, work: Path, tokens: list[int], threads: int) -> None:
    """In its Python: write the logits [1+STEPS,V]."""
    from tools.studies.speed.peers import mobius_peer

    peer = mobius_peer.make(checkpoint, str(work), len(tokens), threads)
    rows = []
    for some in (tokens[:PROMPT], *([one] for one in tokens[PROMPT:])):
        peer.take(some)
        rows.append(peer.logits.copy())
    np.save(work / LOGITS, np.stack(rows))


def of_build(directory: Path, tokens: list[int], threads: int) -> NDArray[np.float32]:
    """The logits [1+STEPS,V]."""
    from snapexport.contract.build_directory import Build
    from snapexport.runtime.engine.open_executor import open_executor

    executor = open_executor(Build.open(directory), threads=threads)
    rows = [executor.prefill_prompt(0, tokens[:PROMPT]).logits.copy()]
    for number, token in enumerate(tokens[PROMPT:]):
        at = np.array([token]), np.array([PROMPT + number]), np.array([PROMPT])
        rows.append(executor.decode(*at)[0].logits.copy())
    executor.close()
    return np.stack(rows)


def main() -> None:
    """Write how far apart they are."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--peers-python", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    tokens: list[int] = np.random.default_rng(1).integers(5, 49_000, PROMPT + STEPS).tolist()
    if not given.peers_python:
        of_mobius(str(given.checkpoint), given.work, tokens, given.threads)
        return
    given.work.mkdir(parents=True, exist_ok=True)
    module = ["-m", "tools.studies.quality.mobius_logits", str(given.build), str(given.checkpoint)]
    work = ["--work", str(given.work), "--threads", str(given.threads)]
    subprocess.run([str(given.peers_python), *module, *work], check=True)
    ours = of_build(given.build, tokens, given.threads).astype(np.float64)
    theirs = np.load(given.work / LOGITS).astype(np.float64)
    found: dict[str, Any] = {
        "checkpoint": given.checkpoint.name,
        "prompt": PROMPT,
        "steps": STEPS,
        "largest difference": float(np.abs(ours - theirs).max()),
        "largest logit": float(np.abs(ours).max()),
        "same likeliest tokens": float((ours.argmax(1) == theirs.argmax(1)).mean()),
    }
    given.out.write_text(json.dumps(found, indent=1) + "\n")
    print(found)


if __name__ == "__main__":
    main()
