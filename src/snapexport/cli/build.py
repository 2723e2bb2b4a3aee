"""Build fixed-shape prefill and decode graphs from a Hugging Face checkpoint.

examples:
  snapexport build --model Qwen/Qwen3-0.6B --L-max 32768 --kv-budget 2048 --out qwen.build
  snapexport build --model ./llama --L-max 131072 --kv-budget 8192 --dtype bf16 --target tensorrt \\
      --out llama.build
"""

import argparse
import json

from snapexport.builder import BuildOptions
from snapexport.builder import run as run_build
from snapexport.cli import flags
from snapexport.cli.console import BuildProgress
from snapexport.cli.summary import build_summary, print_summary

HELP = "checkpoint -> build directory"

CHOICES = {
    "model": "checkpoint directory, or a Hugging Face Hub id",
    "out": "the build directory to make",
    "L_max": "longest prompt, tokens",
    "batch": "decode slots: requests that run side by side",
    "decode_batches": "further decode graphs, for when no more than so many slots are in use "
    "(default: 1, 4, 16 ... below --batch; 1 for int4; none where each would hold all weights)",
    "prefill_chunk": "tokens of one prefill step; L_max: the whole prompt at once, compressed "
    "inside the graph (default: 512, or half of L_max)",
    "dtype": "of weights, activations and cache; the CPU has no bf16",
    "cache_dtype": "of compressed caches alone, beside --dtype fp32: fp16, or int8 in ONNX Runtime "
    "(default: the dtype)",
    "weights": "of the linear layers, in blocks of 32 (default: the dtype); a quarter of the "
    "memory traffic of fp16, and less accurate: see what `diff` and `eval` say",
    "decode_attention": "slots of a compressed cache that a step reads: all, or the valid ones "
    "alone, in ONNX Runtime: faster where many are empty (default: all; valid for int8)",
    "top_tokens": "likeliest tokens that the graphs tell beside the logits, so that a GPU need not "
    "bring all logits to the host in each step; 0: none",
    "target": "tensorrt: in the forms that its parser takes; portable: standard operators only",
    "baseline": "also write the full-cache graphs of the same trace",
    "trt_decomposable": "let TensorRT use several kernels for attention where it has no fused one; "
    "the graphs then run in TensorRT alone",
    "link_weights": "hard-link the checkpoint's files instead of copying them; onnx, Polygraphy "
    "and whatever else reads weights by onnx refuse such a build",
    "overwrite": "replace an existing build",
}
CACHE = {
    "policy": "snapstream: sinks, ring and SnapKV's top-k; streaming: no top-k; sage: the last "
    "token votes alone, unpooled; snapkv: no sinks, causal softmax; full: keep all",
    "kv_budget": "slots per layer and KV head, all parts together (default: L_max / 4)",
    "L_sink": "first positions kept for ever, the attention sinks (default: 4)",
    "L_recent": "newest positions kept in the ring (default: half of what the sinks leave)",
    "K": "prompt positions kept by the vote (default: the rest of the budget)",
    "L_obs": "last prompt tokens whose queries vote (default: 8)",
    "pool_kernel": "width of the pool that spreads a vote over its neighbours; odd (default: 31; "
    "7 for snapkv)",
    "vote": "how the queries' attention adds up; squares favour one that is sure (default: sum)",
    "pool": "mean or highest vote of the neighbours (default: avg)",
    "softmax": "attention among the eligible positions alone, or all keys up to the query "
    "(default: candidates)",
    "group": "how the query heads of a KV head agree (default: mean)",
    "budget": "top-k slots alike in all layers, or fewer in each further one as PyramidKV has it "
    "(default: uniform)",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The fields of BuildOptions, and --json."""
    flags.add_fields(parser, BuildOptions, CHOICES)
    flags.add_fields(parser.add_argument_group("cache"), BuildOptions, CACHE)
    parser.add_argument("--json", action="store_true", help="print the manifest's summary as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Build, and say what came of it."""
    options = BuildOptions(**flags.values(arguments, CHOICES | CACHE))
    with BuildProgress() as progress:
        build = run_build(options, progress)
    if arguments.json:
        print(json.dumps(build_summary(build)))
    else:
        print_summary(build)
    return 0
