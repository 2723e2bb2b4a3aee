"""Compares how long exporters take, their memory, and the size of what they write.

All read the same checkpoint, from the page cache, and none downloads anything.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from snapexport.builder.staging import scratch
from snapexport.measure.bench.results import Column, Table
from snapexport.measure.bench.turns import Row, six_digits
from tools.studies.speed.peers import genai, mobius_peer, openvino_peer
from tools.studies.speed.record import Results
from tools.studies.speed.setup import Experiment, Setup


@dataclass(frozen=True)
class Options:
    """slots: of mobius' caches, and snapexport's L_max."""

    checkpoint: str
    slots: int = 8192
    kv_budget: int = 1024
    rounds: int = 2


def run(setup: Setup, options: Options, results: Results) -> None:
    """Each exporter in turn; every second round goes backwards."""
    model = setup.model(options.checkpoint)
    sorted(len(one.read_bytes()) for one in model.iterdir() if one.is_file())
    for number in range(options.rounds):
        with scratch(setup.work / "peer_builds") as directory:
            exporters = list(_exporters(setup, options, str(model.absolute()), directory))
            for name, out, command in exporters if number % 2 == 0 else reversed(exporters):
                results.progress(name, number, options.rounds)
                took = _measured(command, out)
                section = "failed" if "why" in took else "exports"
                results.add(section, {"system": name, "round": number} | took)


def _exporters(
    setup: Setup, options: Options, model: str, directory: Path
) -> Iterator[tuple[str, Path, Sequence[str]]]:
    """Names, what is written, and command lines."""
    for weights in "fp32", "int4":
        out = directory / f"snapexport.{weights}"
        command = [sys.executable, "-m", "snapexport", "build", "--model", model, "--batch", "1"]
        command += ["--L-max", str(options.slots), "--kv-budget", str(options.kv_budget)]
        command += ["--weights", "int4"] if weights == "int4" else []
        yield f"snapexport {weights}", out, [*command, "--out", str(out)]
    if python := setup.peers_python:
        for weights in "fp32", "int4":
            out = directory / f"genai.{weights}"
            command = genai.command(model, out, weights, directory / "cache")
            yield f"onnxruntime-genai {weights}", out, [str(python), *command[1:]]
        out = directory / "mobius.fp32"
        command = mobius_peer.command(model, out, options.slots)
        yield "mobius fp32, static cache", out, [str(python), *command[1:]]
    if python := setup.openvino_python:
        for weights in "fp32", "int4":
            out = directory / f"openvino.{weights}"
            command = openvino_peer.command(model, out, weights)
            yield f"OpenVINO GenAI {weights}", out, [str(python), *command[1:]]


_WATCH = """import json, resource, subprocess, sys
silent = subprocess.DEVNULL
status = subprocess.call(sys.argv[1:], stdout=silent, stderr=silent)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([status, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024]))"""
"""Runs a command from a process of little memory: a new process's peak begins with its parent's."""


def _measured(command: Sequence[str], out: Path) -> Row:
    """Seconds, those of the processor, and bytes in memory and on the disk; or why it failed."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    started = time.perf_counter()
    watch = [sys.executable, "-c", _WATCH, *command]
    told = subprocess.run(watch, env=environment, stdout=subprocess.PIPE, check=True).stdout
    seconds = time.perf_counter() - started
    status, cpu, peak = json.loads(told)
    if status:
        return {"why": f"it ended with status {status}"}
    files = [one.stat() for one in out.rglob("*") if one.is_file()]
    shutil.rmtree(out)
    return {
        "seconds": six_digits(seconds),
        "cpu": six_digits(cpu),
        "peak_bytes": peak,
        "disk_bytes": sum(one.st_size for one in files),
    }


def summary(sections: Row) -> list[Row]:
    """The least of the rounds, by exporter."""
    found: dict[str, list[Row]] = {}
    for row in sections.get("exports", []):
        found.setdefault(row["system"], []).append(row)
    kinds = "seconds", "cpu", "peak_bytes", "disk_bytes"
    return [
        {"system": system} | {kind: min(row[kind] for row in rows) for kind in kinds}
        for system, rows in found.items()
    ]


def tables(report: Row) -> Iterator[Table]:
    """A row for each exporter."""
    columns: dict[str, Column] = {
        "": lambda row: row["system"],
        "seconds": lambda row: f"{row['seconds']:.0f}",
        "of the processor": lambda row: f"{row['cpu']:.0f}",
        "memory, GB": lambda row: f"{1e-9 * row['peak_bytes']:.2f}",
        "on the disk, GB": lambda row: f"{1e-9 * row['disk_bytes']:.2f}",
    }
    yield Table.of("exports", report["summary"], columns)


PEER_BUILDS = Experiment(
    help="time, memory and size of exports of SmolLM2-135M, beside other libraries'",
    cpu=Options("build/real-model/SmolLM2-135M-Instruct.Q4_1.gguf"),
    quick=Options("small", slots=512, kv_budget=128, rounds=1),
    run=run,
    summary=summary,
    tables=tables,
)
