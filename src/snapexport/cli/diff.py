"""Compare transformers, the full-cache graphs and the compressed graphs, through Polygraphy.

Each runs sequences of random tokens, or your prompt (through the build's chat template, if it has
one, as in `generate`), and then transformers' greedy continuation.
Where the compressed cache dropped nothing, outputs must be equal: otherwise the exit status is 1.
Elsewhere the difference is the cost of compression.

examples:
  snapexport diff llama.build
  snapexport diff llama.build --prompt-file report.txt --steps 64 --json
  snapexport diff llama.build --backends onnxruntime,tensorrt
"""

import argparse
import json
import random
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from snapexport.cli import flags, prompt
from snapexport.cli.console import OUT, say
from snapexport.cli.progress import AnswerProgress, add_progress
from snapexport.contract.build_directory import Build
from snapexport.errors import UserError, needs_extra
from snapexport.runtime.engine.limits import Limits
from snapexport.runtime.engine.open_executor import BackendName
from snapexport.runtime.requests.prompts import load_tokenizer, read

if TYPE_CHECKING:
    from snapexport.compare.diff import Difference
    from snapexport.compare.loaders import GraphLoader

HELP = "logits against transformers, through Polygraphy"
_STYLES = {"equal": "green", "DIFFERS": "red"}
BACKENDS: tuple[BackendName, ...] = ("onnxruntime", "tensorrt")
"""Backends that Polygraphy runs here; ONNX Runtime on the CPU."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The build, the sequences and the backends."""
    parser.add_argument("build", type=Path, metavar="BUILD", help="a build directory")
    prompt.add_arguments(parser)
    parser.add_argument(
        "--lengths",
        type=flags.tokens,
        nargs="+",
        metavar=flags.TOKENS,
        help="lengths of the random prompts (default: one that the cache holds with its "
        "continuation, and one that is two chunks longer than the cache)",
    )
    parser.add_argument(
        "--steps",
        type=flags.tokens,
        default=16,
        metavar=flags.TOKENS,
        help="tokens of the continuation (default: 16)",
    )
    parser.add_argument(
        "--seed", type=int, metavar="N", help="seed of the random prompts (default: 0)"
    )
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help="checkpoint of the reference (default: the build's own weights)",
    )
    parser.add_argument(
        "--adapter",
        metavar="NAME",
        help="the LoRA adapter that the build was made with, which --model has not",
    )
    parser.add_argument(
        "--backends",
        type=_backends_named,
        default=("onnxruntime",),
        metavar="NAMES",
        help="what runs the build's graphs: onnxruntime, tensorrt (the engines that `snapexport "
        "engine` built for this GPU), or both, separated by a comma (default: onnxruntime)",
    )
    add_progress(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Compare and print."""
    build = Build.open(arguments.build)
    build.require_run(command="diff")
    if "onnxruntime" in arguments.backends:
        build.require_run(backend="onnxruntime")
    prompts = _prompts(build, arguments)
    with needs_extra("build"):
        from snapexport.compare.diff import compare_build
    loaders = _loaders(build, arguments.backends)
    model, adapter = arguments.model, arguments.adapter
    graphs = (1 + build.has_baseline) * max(1, len(loaders))
    with AnswerProgress((1 + graphs) * len(prompts), "runs") as progress:
        advance = progress.advance
        found = compare_build(build, model, prompts, arguments.steps, loaders, adapter, advance)
    if arguments.json:
        print(json.dumps({"differences": [asdict(difference) for difference in found]}))
    else:
        _print_differences(build, found)
    return int(any(difference.broken for difference in found))


def _backends_named(text: str) -> tuple[str, ...]:
    """The chosen backends, in the order of BACKENDS."""
    chosen = text.split(",")
    if unknown := set(chosen) - set(BACKENDS):
        raise argparse.ArgumentTypeError(
            f"no backend '{min(unknown)}': choose from {', '.join(BACKENDS)}"
        )
    return tuple(name for name in BACKENDS if name in chosen)


def _loaders(build: Build, chosen: tuple[str, ...]) -> "dict[str, GraphLoader]":
    """Loaders of the graphs by backend; none if ONNX Runtime is the only one."""
    from snapexport.compare.loaders import on_onnxruntime, on_tensorrt

    if "tensorrt" not in chosen:
        return {}
    from snapexport.runtime.engine.backend import DeviceError
    from snapexport.runtime.trt.engines import open_engines

    try:
        _, engines = open_engines(build)
    except DeviceError as error:
        raise UserError(
            f"the GPU failed: {error}", "see what else runs on it: nvidia-smi"
        ) from error
    loaders = {"onnxruntime": on_onnxruntime(build), "tensorrt": on_tensorrt(engines.load)}
    return {name: loaders[name] for name in chosen}


def _prompts(build: Build, arguments: argparse.Namespace) -> list[list[int]]:
    """The given prompt, or random ones. Raises a UserError where one can't be run."""
    geometry = build.manifest.geometry
    longest = min(geometry.L_max - arguments.steps, geometry.longest_prompt)
    if arguments.steps < 1 or longest < 1:
        raise UserError(
            f"--steps {arguments.steps} is not between 1 and L_max - 1",
            f"the build's L_max is {geometry.L_max}: leave room for a prompt",
        )
    given = prompt.find(arguments, build)
    if given is None:
        prompts = _random_prompts(build, arguments, longest)
    else:
        prompts = [_given_prompt(build, arguments, given)]
    for tokens in prompts:
        if not 1 <= len(tokens) <= longest:
            raise UserError(
                f"{len(tokens)} prompt tokens and {arguments.steps} steps don't fit into L_max, "
                f"{geometry.L_max}",
                f"use prompts of 1 to {longest} tokens, or fewer --steps",
            )
    return prompts


def _given_prompt(build: Build, arguments: argparse.Namespace, given: prompt.Given) -> list[int]:
    for flag in ("lengths", "seed"):
        if getattr(arguments, flag) is not None:
            raise UserError(
                f"--{flag} is for random prompts, but a prompt was given",
                f"drop --{flag} or the prompt",
            )
    limits = Limits.of(build.manifest, full_cache=True)
    tokens = given.tokens(load_tokenizer(build.directory), limits)
    (request,) = read(tokens, None, None, limits)
    return list(request.prompt_token_ids)


def _random_prompts(build: Build, arguments: argparse.Namespace, longest: int) -> list[list[int]]:
    rng = random.Random(arguments.seed or 0)
    vocabulary = range(build.manifest.model.vocab_size)
    lengths = arguments.lengths or _default_lengths(build, longest, arguments.steps)
    return [rng.choices(vocabulary, k=length) for length in lengths]


def _default_lengths(build: Build, longest: int, steps: int) -> list[int]:
    """One prompt that loses nothing, and one that no layer's cache holds whole.

    The second is not L_max long: transformers would take hours over a very long prompt.
    """
    geometry, chunks = build.manifest.geometry, 2 * build.manifest.prefill_chunk
    if not geometry.compresses:
        return sorted({1, min(longest, chunks)})
    held = min(layer.size for layer in geometry.layers) - steps
    slots = max(layer.cache_slots for layer in geometry.layers)
    return sorted({max(1, min(held, longest)), min(longest, slots + chunks)})


def _print_differences(build: Build, found: "list[Difference]") -> None:
    """Print a row for each sequence, output and pair."""
    table = Table("prompt", "output", "compared", "max error", "top-1", "KL", "", box=None)
    for column in table.columns:
        column.no_wrap = column.header != "compared"  # two names can be long
    for difference in found:
        table.add_row(*_cells(difference))
    OUT.print(table)
    say(_legend(build, found), "dim", OUT)
    if not build.has_baseline and build.manifest.geometry.compresses:
        lacks = "the build has no full-cache graphs to compare with: build it with --baseline"
        say(lacks, console=OUT)


def _legend(build: Build, found: "list[Difference]") -> str:
    """The meanings of the words in the last column."""
    from snapexport.compare.difference import spelled_tolerance

    options = build.manifest.graph_options
    bound = f"differs by more than {spelled_tolerance(build.manifest)}"
    dtypes = dict.fromkeys(filter(None, (options.prompt_cache_dtype, options.cache_dtype)))
    meanings = {
        "equal": f"nothing was dropped, and no logit {bound}",
        "DIFFERS": f"nothing was dropped, and a logit {bound}",
        "compressed": "the cost of the smaller cache",
        "rounded": f"the cost of a cache in {' and '.join(dtypes)}",
        "quantized": "the cost of rounding to integers: of weights, or activations in products",
    }
    verdicts = {difference.verdict for difference in found}
    return "; ".join(f"{word}: {meanings[word]}" for word in meanings if word in verdicts)


def _cells(one: "Difference") -> tuple[str | Text, ...]:
    return (
        str(one.prompt_length),
        one.output.removesuffix(".logits"),
        f"{one.system} to {one.reference}",
        f"{one.distance.max_abs_error:.2g}",
        f"{one.distance.top1_agreement:.3f}",
        f"{one.distance.kl_divergence:.2g}",
        Text(one.verdict, style=_STYLES.get(one.verdict, "yellow")),
    )
