"""Prints a plan for several devices: a row for each role and cache, then where the weights lie."""

from typing import Any

from rich.table import Table

from snapexport.build.plan.devices import DevicesPlan, Share
from snapexport.cli.console import OUT
from snapexport.contract.sizes import spelled

_PARTS = ("weights", "cache of a request", "of its requests", "activations", "peak")


def devices_report(plan: DevicesPlan) -> dict[str, Any]:
    """The plan as plain data; sizes in bytes, of one device."""
    return {
        "model": plan.model.facts.model_dump(),
        "devices": plan.devices,
        "memory_bytes": plan.request.memory,
        "L_max": plan.options.L_max,
        "dtype": plan.options.dtype,
        "weights": plan.options.weights,
        "shares": [_share(one) for one in plan.shares],
        "weights_bytes": plan.weights,
    }


def _share(one: Share) -> dict[str, Any]:
    return {
        "role": one.role,
        "compression": one.cache,
        "weights_bytes": one.weights,
        "request_cache_bytes": one.request_cache,
        "activations_bytes": one.work,
        "peak_bytes": one.peak,
        "device_batch": one.batch,
        "batch": one.requests,
    }


def print_devices(plan: DevicesPlan) -> None:
    """Two tables, and how the model is cut."""
    options = plan.options
    OUT.print(
        f"{plan.model.facts.architecture}, prompts up to {options.L_max} tokens, {options.target}, "
        f"{options.weights or options.dtype}, on {plan.devices} devices of "
        f"{spelled(plan.request.memory)}"
    )
    OUT.print(_roles(plan))
    OUT.print(_groups(plan))
    OUT.print(_how(plan))


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(columns[0])
    for column in columns[1:]:
        table.add_column(column, justify="right")
    return table


def _roles(plan: DevicesPlan) -> Table:
    table = _table("on each device", *_PARTS, "its batch", "batch of all")
    for one in plan.shares:
        cache = "one prompt" if one.cache is None else f"{one.cache:.3g} : 1"
        held = max(1, one.batch) * one.request_cache
        parts = (one.weights, one.request_cache, held, one.work, one.peak)
        batches = (str(one.batch or "no"), str(one.requests or "no"))
        table.add_row(f"{one.role}, {cache}", *map(spelled, parts), *batches)
    return table


def _groups(plan: DevicesPlan) -> Table:
    groups = [name for name, nbytes in plan.weights["decode"].items() if nbytes]
    table = _table("weights of a device", *groups)
    for role, held in plan.weights.items():
        table.add_row(role, *(spelled(held[group]) for group in groups))
    return table


def _how(plan: DevicesPlan) -> str:
    facts = plan.model.facts
    heads = f"{facts.num_attention_heads // plan.devices} of {facts.num_attention_heads} heads"
    if facts.latent:
        return (
            f"prefill: {heads} a device, and the latents of the prompt on every device\n"
            "decode: a request's latents and attention on one device; projections and experts cut"
        )
    held = max(1, facts.num_key_value_heads // plan.devices)
    copies = max(1, plan.devices // facts.num_key_value_heads)
    also = f", each on {copies} devices" if copies > 1 else ""
    return f"{heads} and {held} of {facts.num_key_value_heads} KV heads a device{also}"
