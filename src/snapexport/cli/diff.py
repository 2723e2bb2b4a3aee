"""Compare transformers, the full-cache graphs and the compressed graphs, through Polygraphy.

Sequences of random tokens (or your prompt) go through all of them; transformers' own greedy
continuation is forced on each. Where the compressed cache dropped nothing, outputs must be equal:
if they are not, the exit status is 1. Beyond, the distance is what the compression costs.

examples:
  snapexport diff llama.build
  snapexport diff llama.build --prompt-file report.txt --steps 64 --json
  snapexport diff llama.build --backends onnxruntime,tensorrt
"""

import argparse
import json
import random
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from snapexport.cli import diff_view, prompt
from snapexport.cli.console import ERR
from snapexport.contract.build_directory import Build
from snapexport.contract.errors import UserError, needs_extra
from snapexport.runtime.executor import Limits
from snapexport.runtime.open_executor import BackendName
from snapexport.runtime.prompts import load_tokenizer, read

if TYPE_CHECKING:
    from snapexport.eval.accuracy.backends import Backend

HELP = "accuracy against transformers, by Polygraphy"
BACKENDS: tuple[BackendName, ...] = ("onnxruntime", "tensorrt")
"""Those that Polygraphy runs here: its ONNX Runtime is the CPU's."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The build, the sequences, and where the plain commands go."""
    parser.add_argument("build", type=Path, metavar="BUILD", help="a build directory")
    prompt.add_arguments(parser, required=False)
    parser.add_argument(
        "--lengths",
        type=int,
        nargs="+",
        metavar="N",
        help="lengths of the random prompts (default: one that sinks and ring hold with its "
        "continuation, and one that is two chunks longer than the cache, but not L_max itself: "
        "transformers would take hours over a very long one)",
    )
    parser.add_argument(
        "--steps", type=int, default=16, metavar="N", help="decode steps (default: 16)"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="of the random tokens (default: 0)")
    parser.add_argument(
        "--model", metavar="MODEL", help="reference checkpoint (default: the build's own weights)"
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="plain polygraphy commands (default: BUILD.diff)"
    )
    parser.add_argument(
        "--backends",
        type=_backends_named,
        default=("onnxruntime",),
        metavar="NAMES",
        help="what runs the build's graphs: onnxruntime, tensorrt (the plans that `snapexport "
        "engine` built for this GPU), or both with a comma (default: onnxruntime)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Compare, print, and write the commands that repeat it."""
    build = Build.open(arguments.build)
    if "onnxruntime" in arguments.backends:
        with needs_extra("cpu"):
            from snapexport.runtime.ort.backend import require_runnable
        require_runnable(build, baseline=False)
    prompts = _prompts(build, arguments)
    with needs_extra("build"):
        from snapexport.eval.accuracy.report import compare_build
    backends = _backends(build, arguments.backends)
    out = arguments.out or _beside(build.directory.resolve())
    _require_ours(out)
    with ERR.status("comparing") if ERR.is_terminal else nullcontext():
        found, commands = compare_build(
            build, arguments.model, prompts, arguments.steps, out, backends
        )
    if arguments.json:
        print(json.dumps({"differences": [asdict(d) for d in found], "commands": str(commands)}))
    else:
        diff_view.print_differences(build, found, commands)
    return int(any(difference.broken for difference in found))


def _backends_named(text: str) -> tuple[str, ...]:
    """The chosen ones, in the order of BACKENDS."""
    chosen = text.split(",")
    if unknown := set(chosen) - set(BACKENDS):
        raise argparse.ArgumentTypeError(
            f"no backend '{min(unknown)}': choose from {', '.join(BACKENDS)}"
        )
    return tuple(name for name in BACKENDS if name in chosen)


def _backends(build: Build, chosen: tuple[str, ...]) -> "dict[str, Backend]":
    """What runs the graphs, by name; none where it is ONNX Runtime alone, which goes unsaid."""
    from snapexport.eval.accuracy.backends import on_onnxruntime, on_tensorrt

    if "tensorrt" not in chosen:
        return {}
    from snapexport.runtime.backend import DeviceError
    from snapexport.runtime.trt.plans import open_plans

    try:
        _, plans = open_plans(build)
    except DeviceError as error:
        raise UserError(
            f"the GPU failed: {error}", "see what else runs on it: nvidia-smi"
        ) from error
    backends = {"onnxruntime": on_onnxruntime(build), "tensorrt": on_tensorrt(plans.load)}
    return {name: backends[name] for name in chosen}


def _require_ours(out: Path) -> None:
    """Raise UserError for a directory that holds other things than a former diff's."""
    from snapexport.eval.accuracy.repeat import COMMANDS

    if out.exists() and (not out.is_dir() or any(out.iterdir())) and not (out / COMMANDS).is_file():
        raise UserError(f"{out} exists, and holds no results of a diff", "choose another --out")


def _beside(directory: Path) -> Path:
    return directory.with_name(directory.name + ".diff")


def _prompts(build: Build, arguments: argparse.Namespace) -> list[list[int]]:
    """The prompt that was given, or random ones. Raises UserError for what can't be run."""
    longest = build.manifest.geometry.L_max - arguments.steps
    if arguments.steps < 1 or longest < 1:
        raise UserError(
            f"--steps {arguments.steps} is not between 1 and L_max - 1",
            f"the build's L_max is {build.manifest.geometry.L_max}: leave room for a prompt",
        )
    text = prompt.read(arguments)
    if text is None:
        prompts = _random_prompts(build, arguments, longest)
    else:
        prompts = [_given_prompt(build, arguments, text)]
    for tokens in prompts:
        if not 1 <= len(tokens) <= longest:
            raise UserError(
                f"{len(tokens)} prompt tokens and {arguments.steps} steps don't fit into L_max",
                f"take prompts of 1 to {longest} tokens, or fewer --steps",
            )
    return prompts


def _given_prompt(build: Build, arguments: argparse.Namespace, text: str) -> list[int]:
    for flag in ("lengths", "seed"):
        if getattr(arguments, flag) is not None:
            raise UserError(
                f"--{flag} is for random prompts, and a prompt was given", "give one of them"
            )
    limits = Limits.of(build.manifest, full_cache=True)
    (request,) = read(text, None, load_tokenizer(build.directory), limits)
    return list(request.prompt_token_ids)


def _random_prompts(build: Build, arguments: argparse.Namespace, longest: int) -> list[list[int]]:
    rng = random.Random(arguments.seed or 0)
    vocabulary = range(build.manifest.model.vocab_size)
    lengths = arguments.lengths or _default_lengths(build, longest, arguments.steps)
    return [rng.choices(vocabulary, k=length) for length in lengths]


def _default_lengths(build: Build, longest: int, steps: int) -> list[int]:
    """One prompt of which nothing is dropped, and one that no layer's cache holds whole."""
    geometry, chunks = build.manifest.geometry, 2 * build.manifest.prefill_chunk
    if not geometry.compresses:
        return sorted({1, min(longest, chunks)})
    held = min(layer.L_sink + layer.L_recent for layer in geometry.layers) - steps
    slots = max(layer.cache_slots for layer in geometry.layers)
    return sorted({max(1, min(held, longest)), min(longest, slots + chunks)})
