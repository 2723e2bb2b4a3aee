"""Show a build: geometry, memory, operators, and what it keeps of a prompt.

examples:
  snapexport inspect llama.build
  snapexport inspect llama.build --prompt-file report.txt
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from snapexport.commands import prompt
from snapexport.commands.console import OUT
from snapexport.commands.picture import kept_picture
from snapexport.commands.summary import build_summary, print_summary
from snapexport.contract.build_directory import Build

HELP = "geometry, memory, operators, what a prompt kept"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The build and, if wanted, a prompt."""
    parser.add_argument("build", type=Path, metavar="BUILD", help="a build directory")
    prompt.add_arguments(parser, required=False)
    parser.add_argument("--verify", action="store_true", help="read all the weights and check them")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Print the summary, the operators of each graph, and the prompt's kept positions."""
    build = Build.open(arguments.build)
    text = prompt.read(arguments)
    report: dict[str, Any] = build_summary(build) | {"operators": operators(build)}
    if arguments.verify:
        report["unverified_weights"] = build.verify_weights()
    kept = kept_positions(build, text) if text is not None else None
    if arguments.json:
        print(json.dumps(report | ({"prompt": kept} if kept else {})))
        return 0
    print_summary(build)
    _print_operators(report["operators"])
    if arguments.verify:
        _print_verified(report["unverified_weights"])
    if kept:
        _print_kept(build, kept)
    return 0


def operators(build: Build) -> dict[str, dict[str, int]] | None:
    """How often each operator stands in each graph; None where the onnx package is missing."""
    try:
        import onnx
    except ModuleNotFoundError:
        return None
    return {
        name: dict(Counter(_operators(onnx.load(build.graph(name), load_external_data=False))))
        for name in sorted(build.manifest.graphs)
    }


def _operators(model: Any) -> Iterator[str]:
    for node in model.graph.node:
        yield f"{node.domain}::{node.op_type}" if node.domain else node.op_type


def kept_positions(build: Build, text: str) -> dict[str, Any]:
    """Prefill the prompt, and say which of its positions each layer and KV head kept."""
    from snapexport.runtime.llm import LLM
    from snapexport.runtime.requests import SamplingParams

    llm = LLM(build.directory)
    (completion,) = llm.generate(text, SamplingParams(max_tokens=1))
    length = len(completion.prompt_token_ids)
    kept = llm.engine.topk_positions() or []
    return {"prompt_tokens": length, "topk_positions": [layer.tolist() for layer in kept]}


def _print_operators(counts: dict[str, dict[str, int]] | None) -> None:
    if counts is None:
        OUT.print("[dim]operators: not shown, they need snapexport\\[build][/]")
        return
    for graph, operators in counts.items():
        often = sorted(operators.items(), key=lambda item: -item[1])
        OUT.print(f"[bold]{graph}[/] " + ", ".join(f"{count} {name}" for name, count in often))


def _print_verified(unverified: list[str]) -> None:
    if unverified:
        OUT.print(f"weights: no hash was recorded for {', '.join(unverified)}")
    else:
        OUT.print("weights: every byte is as it was built")


def _print_kept(build: Build, kept: dict[str, Any]) -> None:
    length = kept["prompt_tokens"]
    if not kept["topk_positions"]:
        OUT.print(f"all {length} positions are kept: the cache is the full one")
        return
    positions = [np.array(layer, np.int64) for layer in kept["topk_positions"]]
    for line in kept_picture(build.manifest.geometry, positions, length):
        OUT.print(line)
