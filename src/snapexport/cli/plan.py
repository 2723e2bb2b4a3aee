"""What fits into a memory, before anything is built.

Reads a checkpoint's config and headers alone. What is given is kept, what is not is chosen. Sizes
are bounds (docs/plan.md says what they count); nothing is promised of speed.

examples:
  snapexport plan --model ./llama --L-max 131072 --memory 80GiB --target tensorrt
  snapexport plan --model ./llama --L-max 32768 --memory 24G --batch 8 --weights int4
"""

import argparse
import json

from snapexport.builder import BuildOptions
from snapexport.builder.plan import PlanOptions, make_plan
from snapexport.builder.plan.memory_size import parse_size
from snapexport.cli import build, flags
from snapexport.cli.plan_view import print_plan

HELP = "what fits into a memory, before anything is built"

_CHOSEN = {
    "batch": "decode slots (default: as many as fit)",
    "prefill_chunk": "tokens of one prefill step; L_max: a single shot (default: the best that "
    "fits)",
    "dtype": "of weights, activations and cache (default: fp32; for tensorrt the checkpoint's own "
    "16 bits, or bf16)",
}
CHOICES = (
    {name: build.CHOICES[name] for name in ("model", "L_max")}
    | _CHOSEN
    | {name: build.CHOICES[name] for name in ("weights", "cache_dtype", "decode_attention")}
    | {name: build.CHOICES[name] for name in ("target", "trt_decomposable")}
)
CACHE = build.CACHE | {
    "policy": build.CACHE["policy"] + " (default: snapstream, or full where a given batch fits it)",
    "kv_budget": "slots per layer and KV head, all parts together (default: chosen)",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `build` that decide about memory, and the memory."""
    parser.add_argument(
        "--memory", required=True, metavar="SIZE", help="of all, such as 80GiB, 24GB or 512M"
    )
    flags.add_fields(parser, BuildOptions, CHOICES)
    flags.add_fields(parser.add_argument_group("cache"), BuildOptions, CACHE)
    parser.set_defaults(policy=None, batch=None, dtype=None)
    parser.add_argument("--json", action="store_true", help="print every candidate as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print the candidates and the recommendation."""
    given = flags.values(arguments, CHOICES | CACHE)
    plan = make_plan(PlanOptions(parse_size(arguments.memory), given))
    if arguments.json:
        from snapexport.builder.plan.report import plan_report

        print(json.dumps(plan_report(plan)))
    else:
        print_plan(plan)
    return 0
