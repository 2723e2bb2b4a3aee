"""Show a build: geometry, memory, operators, and the positions that it keeps of a prompt.

If the build has a chat template, the prompt goes through it, as in `generate`, and the template's
text is shown too.

examples:
  snapexport inspect llama.build
  snapexport inspect llama.build "What is the capital of France?"
  snapexport inspect llama.build --prompt-file report.txt --html kept.html
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapexport.builder.verify import Verified, load_graph, verify
from snapexport.cli import flags, prompt
from snapexport.cli.console import OUT, print_rows, say
from snapexport.cli.flags import whole_file
from snapexport.cli.kept_view import kept_picture, picture_width
from snapexport.cli.summary import build_summary, print_summary
from snapexport.contract.build_directory import Build
from snapexport.contract.memory import spelled
from snapexport.measure import page
from snapexport.runtime.engine.open_executor import BackendName
from snapexport.runtime.requests.config import LLMConfig
from snapexport.runtime.trt import entry as tensorrt_entry

HELP = "geometry, memory, operators, and the kept positions of a prompt"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the build and the prompt."""
    parser.add_argument("build", type=Path, metavar="BUILD", help="a build directory")
    prompt.add_arguments(parser)
    flags.add_fields(parser, LLMConfig, {"backend": flags.BACKEND["backend"]})
    parser.add_argument(
        "--verify",
        action="store_true",
        help="compare all weights and engines with their hashes, the graphs with the manifest",
    )
    parser.add_argument(
        "--html",
        type=Path,
        metavar="FILE",
        help="write a page that shows the kept positions in the prompt",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Print the summary, the operators of each graph, and the kept positions of the prompt."""
    build = Build.open(arguments.build)
    given = prompt.find(arguments, build, "html", "backend")
    report: dict[str, Any] = build_summary(build) | {"operators": operators(build)}
    if arguments.verify:
        tensorrt_entry.verify(build)
        verified = verify(build)
        report |= {
            "unverified_weights": verified.unhashed_weights,
            "graphs_compared": verified.compared_graphs,
            "other_files": verified.other_files,
        }
    kept = _find_kept(build, given, arguments.html, arguments.backend)
    if arguments.html:
        report["html"] = {"file": str(arguments.html), "bytes": arguments.html.stat().st_size}
    if arguments.json:
        print(json.dumps(report | ({"prompt": kept} if kept else {})))
        return 0
    print_summary(build)
    if not kept:
        _print_operators(report["operators"])
    if arguments.verify:
        _print_verified(verified)
    if kept:
        _print_kept(build, kept)
    if arguments.html:
        OUT.print(f"{report['html']['file']}: {spelled(report['html']['bytes'])}")
    return 0


def _find_kept(
    build: Build, given: prompt.Given | None, html: Path | None, backend: BackendName | None
) -> dict[str, Any] | None:
    """The kept positions of a prompt, if one is given; written to a page, if --html is given."""
    if given is None:
        return None
    with whole_file(html, "--html") if html else nullcontext() as write:
        kept = kept_positions(build, given, backend)
        if write:
            write(_html_page(build, given, kept))
    return kept


def kept_positions(
    build: Build, given: prompt.Given, backend: BackendName | None
) -> dict[str, Any]:
    """Prefill the prompt, and return the positions that each layer and KV head kept."""
    from snapexport.runtime.requests.llm import LLM
    from snapexport.runtime.requests.request import SamplingParams

    llm = LLM(build.directory, backend=backend)
    token_ids = given.tokens(llm.tokenizer, llm.executor.limits)
    (completion,) = llm.generate([token_ids], SamplingParams(max_tokens=1))
    length = len(completion.prompt_token_ids)
    kept = llm.executor.topk_positions() or []
    return {"prompt_tokens": length, "topk_positions": [layer.tolist() for layer in kept]}


def _html_page(build: Build, given: prompt.Given, kept: dict[str, Any]) -> str:
    """The page that shows the kept positions in the prompt."""
    from snapexport.runtime.requests.prompts import load_tokenizer

    tokenizer = load_tokenizer(build.directory)
    assert tokenizer is not None, "the prompt was encoded with one"
    encoded = tokenizer.encode(given.text, add_special_tokens=not given.is_whole)
    tokenized = page.TokenizedPrompt.of(given.text, encoded)
    assert len(tokenized.offsets) == kept["prompt_tokens"]
    return page.render(build.directory.name, tokenized, build.manifest.geometry, _arrays(kept))


def _arrays(kept: dict[str, Any]) -> list[NDArray[np.int64]]:
    """The voted positions [Hkv, K] of each layer."""
    return [np.array(layer, np.int64) for layer in kept["topk_positions"]]


def operators(build: Build) -> dict[str, dict[str, int]] | None:
    """The number of each operator in each graph; None where the onnx package is missing."""
    try:
        import onnx  # noqa: F401
    except ModuleNotFoundError:
        return None
    return {
        name: dict(Counter(_operators(load_graph(build.graph(name)))))
        for name in sorted(build.manifest.graphs)
    }


def _operators(model: Any) -> Iterator[str]:
    for node in model.graph.node:
        yield f"{node.domain}::{node.op_type}" if node.domain else node.op_type


def _print_operators(counts: dict[str, dict[str, int]] | None) -> None:
    if counts is None:
        OUT.print("operators: not shown, since they need snapexport[build]", style="dim")
        return
    print_rows({graph: _count_text(operators) for graph, operators in counts.items()})


def _count_text(operators: dict[str, int]) -> str:
    often = sorted(operators.items(), key=lambda item: -item[1])
    return ", ".join(f"{count} {name}" for name, count in often)


def _print_verified(verified: Verified) -> None:
    lines = []
    if verified.unhashed_weights:
        few = _few(verified.unhashed_weights)
        lines.append(f"weights: not verified, as they have no recorded hash: {few}")
    else:
        lines.append("every byte of the graphs, weights and engines matches the manifest's hashes")
    if verified.compared_graphs:
        lines.append("graphs: inputs, outputs and references to weights are the manifest's")
    else:
        lines.append("graphs: not compared with the manifest, which needs snapexport[build]")
    if verified.other_files:
        lines.append(f"not in the manifest, so not verified: {_few(verified.other_files)}")
    for line in lines:
        say(line, console=OUT)


def _few(names: list[str]) -> str:
    """Up to three names, and the number of the others."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _print_kept(build: Build, kept: dict[str, Any]) -> None:
    length = kept["prompt_tokens"]
    if not kept["topk_positions"]:
        say(f"all {length} positions are kept: the cache is the full one", console=OUT)
        return
    for line in kept_picture(
        build.manifest.geometry, _arrays(kept), length, picture_width(OUT.width)
    ):
        OUT.print(line)
