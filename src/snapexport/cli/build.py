"""Build fixed-shape prefill and decode graphs from a Hugging Face checkpoint.

examples:
  snapexport build --model Qwen/Qwen3-0.6B --L-max 32768 --out qwen.build
  snapexport build --model ./llama --L-max 131072 --kv-budget 8192 \\
      --dtype bf16 --target tensorrt --out llama.build
  snapexport build --model smollm2.Q4_1.gguf --L-max 8192 --out smollm2.build
"""

import argparse
import dataclasses
import json

from snapexport.builder import BuildOptions
from snapexport.builder import run as run_build
from snapexport.cli import flags
from snapexport.cli.console import ERR
from snapexport.cli.progress import BuildProgress, add_progress
from snapexport.cli.summary import build_summary, print_summary
from snapexport.contract.exclusions import refusal
from snapexport.contract.graph_options import GraphOptions
from snapexport.contract.targets import capabilities
from snapexport.contract.vote import Voter
from snapexport.methods.table import METHODS, option_classes, voters

HELP = "checkpoint -> build directory"


def classes() -> tuple[type, ...]:
    """The classes whose fields are the flags of a build."""
    return (BuildOptions, GraphOptions, *option_classes())


def helps() -> dict[str, str]:
    """The help of each flag, by its field."""
    found = {
        field.name: field.metadata["help"]
        for kind in classes()
        for field in dataclasses.fields(kind)
        if "help" in field.metadata
    }
    return found | _HELPS


_HELPS = {
    "model": "checkpoint directory, GGUF file, or a Hugging Face Hub id",
    "out": "the build directory to make",
    "L_max": "longest prompt, tokens",
    "batch": "batch slots: requests that decode side by side",
    "decode_batches": "batch slots of further, smaller decode graphs, for steps that use no more "
    "(default: 1, 4, 16 ... below --batch; 1 for integers; none where each would hold all weights)",
    "prefill_chunk": "tokens of one prefill step; L_max: the whole prompt at once, compressed "
    "inside the graph (default: 128 for ONNX Runtime in fp32, else 512; half of L_max at most)",
    "prefill_capacities": "positions of the caches of further prefill graphs, for shorter prompts: "
    "TensorRT's attention reads the whole cache in each chunk (default: none)",
    "dtype": "dtype of weights, activations and cache; the CPU has no bf16",
    "weights": "form of linear layers, experts and embedding. keep: the integers of a quantized "
    "checkpoint (default where it has some that the target takes; for the tensorrt targets, most "
    "of 4 bits). dequantize: in the dtype (default otherwise). int8, int4: rounded in blocks; int4 "
    "is less accurate. fp8: keep the checkpoint's fp8 weights, for the tensorrt targets: half of "
    "bf16's memory, slower",
    "adapter": "LoRA adapter of PEFT, a folder or a Hub id, which is merged into the weights",
    "target": "onnxruntime: with operators of its own; tensorrt: in forms that its parser takes; "
    "portable: standard operators only; openvino: standard operators and products of integers",
    "baseline": "also write the full-cache graphs of the same trace",
    "tensor_parallel": "ranks that share the model: each has a part of the heads, MLPs, experts "
    "and vocabulary, in a folder of its own",
    "link_weights": "hard-link the checkpoint's files instead of copying them; onnx and Polygraphy "
    "refuse to read such a build",
    "longrope": "for a RoPE of type longrope: choose one of its two sets of frequencies for all "
    "sequences, the long one if L_max is above the length of training",
    "verify": "compare a few of the checkpoint's layers with transformers before anything is "
    "written; always done for families without a test in this project",
    "overwrite": "replace an existing build",
    "policy": "snapstream: sinks, ring and SnapKV's top-k; streaming: no top-k; sage: only the "
    "last token votes, unpooled; snapkv: no sinks, causal softmax; full: keep all",
    "kv_budget": "cache slots per layer and KV head, all parts together (default: L_max / 4)",
    "L_sink": "first positions, always kept: the attention sinks (default: 4)",
    "L_recent": "newest positions kept in the ring (default: half of what the sinks leave; at "
    "least 18, but at most two thirds)",
    "K": "prompt positions kept by the vote (default: the rest of the budget)",
    "L_obs": "last prompt tokens, whose queries vote (default: 8; with a chat template, ten more "
    "than the template writes after a question)",
    "pool_kernel": "width of the pooling of votes, an odd number (default: 31, but about two "
    "thirds of K where that is less; 7 for snapkv)",
    "vote": "sum of the queries' attention, or of its squares, which favours a sure query "
    "(default: sum-squares; sum for sage and snapkv)",
    "pool": "mean or highest vote of the neighbours (default: avg)",
    "softmax": "attention only among the eligible positions, or all keys up to the query "
    "(default: causal; candidates for sage)",
    "group": "how votes of the query heads of a KV head are combined (default: mean)",
    "budget": "K of the layers: equal, or falling from first to last as in PyramidKV; "
    + "; ".join(f"{method.budget}: {method.budget_help}" for method in METHODS if method.budget)
    + " (default: uniform)",
    "vote_queries": "whose queries vote (docs/reference/vote-options.md). "
    + "; ".join(f"{voter.name}: {voter.help}" for voter in voters().values())
    + f" (default: {Voter().name})",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The fields of BuildOptions and GraphOptions, and --json."""
    parser.usage = "%(prog)s --model NAME --L-max N --out DIR [flags]"
    flags.add_grouped(parser, classes(), helps())
    add_progress(next(g for g in parser._action_groups if g.title == "advanced"))
    parser.add_argument("--json", action="store_true", help="print the manifest's summary as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Build, and print the summary."""
    options = BuildOptions.of(**flags.values(arguments, helps(), arguments.L_max))
    if not capabilities(options.target).runs_on_gpu:
        _note_without_a_cpu(options)
    with BuildProgress() as progress:
        build = run_build(options, progress)
    if arguments.json:
        print(json.dumps(build_summary(build)))
    else:
        print_summary(build)
    return 0


def _note_without_a_cpu(options: BuildOptions) -> None:
    """Print a note, not an error: ONNX Runtime runs on a GPU too, which this machine may lack."""
    if refused := refusal({"dtype": options.dtype, "placed_on": "cpu"}):
        ERR.print(f"note: {refused.message}; {refused.hint}")
