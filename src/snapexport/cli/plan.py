"""Finds the caches, chunks and batch that fit into a memory, before anything is built.

Reads a checkpoint's config and headers. Flags that are given are kept, the others are chosen.
Sizes are bounds (docs/how-to/plan.md says what they count). Speed is not promised.

examples:
  snapexport plan --model ./llama --L-max 131072 --memory 80GiB --target tensorrt
  snapexport plan --model ./llama --L-max 32768 --memory 24G --batch 8 --weights int4
"""

import argparse
import json

from snapexport.builder.plan import PlanRequest, make_plan
from snapexport.builder.plan.request import parse_memory
from snapexport.cli import build, flags
from snapexport.cli.plan_view import print_plan

HELP = "find what fits into a memory, before anything is built"

NOT_PLANNED = {
    *("out", "baseline", "verify", "overwrite", "link_weights"),
    *("decode_batches", "tokens_per_step", "tensor_parallel"),
}
"""Flags of `build` that a plan does not take."""
_HELPS = {
    "batch": "batch slots: requests that decode side by side (default: as many as fit)",
    "prefill_chunk": "tokens of one prefill step; L_max: a single shot (default: the best that "
    "fits)",
    "dtype": "dtype of weights, activations and cache (default: fp32; for tensorrt the "
    "checkpoint's own 16 bits, or bf16)",
    "kv_budget": "cache slots per layer and KV head, all parts together (default: chosen)",
}


def helps() -> dict[str, str]:
    """The help of each flag of `build` that decides about memory, by its field."""
    found = {name: text for name, text in build.helps().items() if name not in NOT_PLANNED}
    policy = f"{found['policy']} (default: snapstream, or full where a given batch fits it)"
    return found | _HELPS | {"policy": policy}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `build` that decide about memory, and the memory."""
    parser.add_argument(
        "--memory",
        required=True,
        metavar="SIZE",
        help="all the memory that there is, such as 80GiB, 24GB or 512M",
    )
    parser.usage = "%(prog)s --model NAME --L-max N --memory SIZE [flags]"
    flags.add_grouped(parser, build.classes(), helps())
    parser.set_defaults(policy=None, batch=None, dtype=None)
    parser.add_argument("--json", action="store_true", help="print every alternative as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print the alternatives and the recommendation."""
    given = flags.values(arguments, helps())
    request = PlanRequest(parse_memory(arguments.memory), given)
    plan = make_plan(request)
    if arguments.json:
        from snapexport.builder.plan.plan import plan_report

        print(json.dumps(plan_report(plan)))
    else:
        print_plan(plan)
    return 0
