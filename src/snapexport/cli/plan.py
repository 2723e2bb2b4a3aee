"""Find the caches, chunks and batch that fit into a given memory, before anything is built.

Reads a checkpoint's config and headers. Flags that are given are kept, the others are chosen.
Sizes are bounds (docs/how-to/plan.md says what they count). Speed is not promised.

examples:
  snapexport plan --model ./llama --L-max 131072 --memory 80GiB \\
      --target tensorrt
  snapexport plan --model ./llama --L-max 32768 --memory 24G --batch 8 \\
      --weights int4
"""

import argparse
import dataclasses
import json
from contextlib import nullcontext

from rich.table import Table

from snapexport.builder.plan import Plan, PlanRequest, make_plan
from snapexport.builder.plan.alternatives import Alternative, Recommendation, reasons
from snapexport.builder.plan.plan import parts, plan_report
from snapexport.builder.plan.request import command, parse_memory
from snapexport.cli import build, flags
from snapexport.cli.console import ERR, OUT, say
from snapexport.contract.memory import as_flag, spelled
from snapexport.serving.memory.planned import planned_bound

HELP = "find what fits into a given memory, before anything is built"

NOT_PLANNED = frozenset(
    "adapter out baseline verify overwrite link_weights decode_batches tensor_parallel".split()
)
"""Flags of `build` that a plan does not take, beside those of methods that say so."""
_HELPS = {
    "batch": "batch slots: requests that decode side by side (default: as many as fit)",
    "prefill_chunk": "tokens of one prefill step; L_max: a single shot (default: the best that "
    "fits)",
    "dtype": "dtype of weights, activations and cache (default: fp32; for tensorrt the "
    "checkpoint's own 16 bits, or bf16)",
    "kv_budget": "cache slots per layer and KV head, all parts together (default: chosen)",
}

# Heads of two lines, so that a table fits into 80 columns.
_COLUMNS = (
    "batch\nslots",
    "decode's\ncaches",
    "prompt's\ncache",
    "peak\nmemory",
    "while\ndecoding",
    "read in\na step",
)
_NAMES = {
    "process": "process",
    "weights": "weights",
    "decode_cache": "decode's cache",
    "prefill_cache": "the prompt's cache",
    "prefill_work": "prefill's activations",
    "compress_work": "the vote's scores",
    "decode_work": "decode's activations",
}


def helps() -> dict[str, str]:
    """The help of each flag of `build` that decides about memory, by its field."""
    every = (field for kind in build.classes() for field in dataclasses.fields(kind))
    left_out = NOT_PLANNED | {one.name for one in every if not one.metadata.get("planned", True)}
    found = {name: text for name, text in build.helps().items() if name not in left_out}
    policy = f"{found['policy']} (default: snapstream, or full where a given batch fits it)"
    return found | _HELPS | {"policy": policy}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `build` that decide about memory, and the memory."""
    parser.add_argument(
        "--memory",
        required=True,
        metavar=flags.SIZE,
        help="all memory available, such as 80GiB, 24GB or 512M",
    )
    parser.usage = "%(prog)s --model NAME --L-max N --memory SIZE [flags]"
    flags.add_grouped(parser, build.classes(), helps())
    parser.set_defaults(policy=None, batch=None, dtype=None)
    parser.add_argument("--json", action="store_true", help="print every alternative as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print the alternatives and the recommendation."""
    given = flags.values(arguments, helps(), arguments.L_max)
    request = PlanRequest(parse_memory(arguments.memory), given, planned_bound)
    with ERR.status("reading the model") if ERR.is_terminal else nullcontext():
        plan = make_plan(request)
    if arguments.json:
        print(json.dumps(plan_report(plan)))
    else:
        _print_plan(plan)
    return 0


def _print_plan(plan: Plan) -> None:
    """Caches at the recommended chunk, chunks at the recommended cache, the recommendations."""
    chosen = plan.recommendation.alternative
    OUT.print(_model_line(plan))
    same_chunk = [option for option in plan.alternatives if option.chunk == chosen.chunk]
    same_cache = [option for option in plan.alternatives if option.geometry == chosen.geometry]
    _print_table(plan, "compression,\nslots a head", [(_cache(o), o) for o in same_chunk])
    if len(same_cache) > 1:
        _print_table(plan, "tokens a step\nof prefill", [(_chunk(o), o) for o in same_cache])
    many, one = plan.recommendation, plan.for_one
    if one and (one.alternative, one.batch) != (many.alternative, many.batch):
        _print_recommendation(plan, "for one request at a time", one)
        _print_recommendation(plan, "for as many as fit (*)", many)
    else:
        _print_recommendation(plan, "recommended (*)", many)


def _model_line(plan: Plan) -> str:
    facts, options = plan.model.facts, plan.recommendation.options
    return (
        f"{facts.architecture}, {facts.num_hidden_layers} layers, prompts up to {options.L_max} "
        f"tokens, {options.target}, {options.dtype}, into {spelled(plan.request.memory)}"
    )


def _print_table(plan: Plan, title: str, rows: list[tuple[str, Alternative]]) -> None:
    """A row of sizes for each alternative that fits; * marks the recommended one."""
    fitting = [(name, option) for name, option in rows if _batch(plan, option)]
    table = Table(box=None, pad_edge=False, collapse_padding=True, header_style="bold")
    table.add_column(title)
    for column in _COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    for name, option in fitting:
        mark = " *" if option is plan.recommendation.alternative else ""
        table.add_row(name + mark, *_cells(option, _batch(plan, option)))
    OUT.print()
    OUT.print(table)
    if left := [name for name, option in rows if not _batch(plan, option)]:
        OUT.print(f"does not fit: {'; '.join(left)}", style="dim")


def _batch(plan: Plan, option: Alternative) -> int:
    """The recommended batch in its row; as given, or the largest that fits, in others; or 0."""
    if option is plan.recommendation.alternative:
        return plan.recommendation.batch
    given = int(plan.request["batch"] or option.most_slots)
    return given if given <= option.most_slots else 0


def _cells(option: Alternative, batch: int) -> list[str]:
    taken = option.at(batch)
    sizes = taken.decode_cache, taken.prefill_cache, option.peak(batch), taken.decode_resident
    return [str(batch), *map(spelled, (*sizes, option.step_bytes(batch)))]


def _cache(option: Alternative) -> str:
    slots = sorted({layer.cache_slots for layer in option.geometry.layers})
    per_head = str(slots[0]) if len(slots) == 1 else f"{slots[0]}-{slots[-1]}"
    policy = "" if option.geometry.policy == "snapstream" else f" {option.geometry.policy}"
    return f"{option.compression:.3g} : 1, {per_head}{policy}"


def _chunk(option: Alternative) -> str:
    return "single shot" if option.single_shot else str(option.chunk)


def _print_recommendation(plan: Plan, title: str, chosen: Recommendation) -> None:
    taken = parts(chosen.alternative.at(chosen.batch))
    counted = ", ".join(
        f"{name} {spelled(taken[key])}" for key, name in _NAMES.items() if taken[key]
    )
    OUT.print(f"\n{title}", style="bold")
    for line in reasons(plan.request, chosen):
        say(f"  {line}", console=OUT)
    bound = planned_bound(chosen.alternative, chosen.batch)
    served = f"at most {bound} (serve --memory {as_flag(bound.nbytes)})" if bound else ""
    say(f"  peak: {served or spelled(taken['prefill_peak']) + ' = ' + counted}", console=OUT)
    OUT.print(f"\n{command(chosen.options)}")
