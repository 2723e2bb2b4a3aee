"""Plans a model on several equal devices: what each holds, and the largest batch.

Prefill and decode are roles of devices of their own, as in section 4 of the SnapStream paper. Knows
no network: buffers of collectives are not counted.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from snapexport.builder import BuildOptions
from snapexport.builder.plan.alternatives import largest
from snapexport.builder.plan.footprint import Activations, PlannedTensors
from snapexport.builder.plan.model import PlannedModel, read_model
from snapexport.builder.plan.plan import with_defaults
from snapexport.builder.plan.request import PlanRequest
from snapexport.builder.plan.weights import fp8_bytes, stored_bytes
from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.memory import GPU_CONTEXT, as_flag, spelled
from snapexport.contract.targets import capabilities, targets_with
from snapexport.errors import UserError
from snapexport.files.dtypes import BY_FLAG
from tools.studies.speed.cut import Group, Role, cut_matrices, device_model, require_devices

_MOST = 1 << 14
"""Largest batch that is looked for on one device."""


@dataclass(frozen=True)
class Share:
    """Bytes of one device in a role, at its largest batch, or at 1 if not even that fits.

    cache: compression of decode's cache; None: prefill's full-length one. request_cache: of a
    request on the device. batch: requests whose caches the device has; 0: none fits. requests: of
    all devices together.
    """

    role: Role
    cache: float | None
    weights: int
    request_cache: int
    work: int
    batch: int
    requests: int

    @property
    def peak(self) -> int:
        return GPU_CONTEXT + self.weights + max(1, self.batch) * self.request_cache + self.work


@dataclass(frozen=True)
class DevicesPlan:
    """shares: prefill's, then decode's with a full cache and the compressed one."""

    request: PlanRequest
    devices: int
    model: PlannedModel
    options: BuildOptions
    shares: list[Share]
    weights: dict[Role, dict[Group, int]]


def plan_devices(request: PlanRequest, devices: int) -> DevicesPlan:
    """Read the checkpoint's headers, or a config.json alone, and count. Raises UserError."""
    _require_gpus(request)
    model = read_model(request["model"])
    require_devices(model, devices)
    return plan_devices_for(request, devices, model)


def plan_devices_for(request: PlanRequest, devices: int, model: PlannedModel) -> DevicesPlan:
    """The plan of a model whose headers are read. Raises UserError if a role does not fit."""
    request = with_defaults(request, model)
    options = request.build_options(batch=1)
    geometry = options.geometry(model.facts)
    shares = [_prefill(model, devices, options, geometry, request.memory)]
    for cache in dict.fromkeys((geometry.as_full(), geometry)):
        shares.append(_decode(model, devices, options, cache, request.memory))
    for role in ("prefill", "decode"):
        _require_one(role, [one for one in shares if one.role == role], request, devices)
    weights: dict[Role, dict[Group, int]] = {
        role: dict(_groups(model, devices, role, options)) for role in ("prefill", "decode")
    }
    return DevicesPlan(request, devices, model, options, shares, weights)


def _require_gpus(request: PlanRequest) -> None:
    target = request["target"] or BuildOptions.target
    if not capabilities(target).runs_on_gpu:
        raise UserError(
            f"--devices is not supported with --target {target}, which runs on one CPU",
            f"use --target {targets_with('runs_on_gpu')}",
        )
    if request["batch"] is not None:
        raise UserError(
            "--batch is not supported with --devices, which finds the largest batch",
            "leave it out",
        )
    if request["head_budget"] is not None or request["budget"] == "heads":
        raise UserError(
            "--head-budget is not supported with --devices, which share the KV heads",
            "leave one of them out",
        )


def _require_one(role: str, shares: list[Share], request: PlanRequest, devices: int) -> None:
    least = min(shares, key=lambda one: one.peak)
    if not any(one.batch for one in shares):
        raise UserError(
            f"{role} does not fit on {devices} devices of {spelled(request.memory)}: each needs "
            f"{spelled(least.peak)}, {spelled(least.weights)} of it weights",
            f"use more devices, or --memory {as_flag(least.peak)}",
        )


def _prefill(
    model: PlannedModel, devices: int, options: BuildOptions, geometry: CacheGeometry, memory: int
) -> Share:
    """One prompt at a time, its full-length cache and what the vote keeps of it."""
    share, chunk = device_model(model, devices, "prefill"), options.chunk(geometry)
    tensors = PlannedTensors.of(share.facts, options, geometry, chunk)
    of_graphs = Activations(share, options, geometry, chunk)
    work, cache = of_graphs.prefill(tensors.outputs), tensors.prompt_cache
    if geometry.compresses:
        work = max(work, of_graphs.compress())
        cache += tensors.request_cache
    one = Share("prefill", None, stored_bytes(share, options), cache, work, 1, 1)
    return one if one.peak <= memory else replace(one, batch=0, requests=0)


def _decode(
    model: PlannedModel, devices: int, options: BuildOptions, geometry: CacheGeometry, memory: int
) -> Share:
    """Heads are cut, so each device has its heads of all requests; latents, of its own requests."""
    share = device_model(model, devices, "decode")
    together = 1 if model.facts.latent is None else devices

    def at(batch: int) -> Share:
        return Share(
            "decode",
            geometry.L_max
            * geometry.slots.num_caches
            / sum(one.cache_slots for one in geometry.layers),
            stored_bytes(share, options),
            PlannedTensors.of(share.facts, options, geometry, 1).request_cache,
            _decode_work(model, share, replace(options, batch=batch), geometry, together),
            batch,
            batch * together,
        )

    most = largest(_MOST, lambda batch: at(batch).peak <= memory)
    return at(most) if most else replace(at(1), batch=0, requests=0)


def _decode_work(
    model: PlannedModel,
    share: PlannedModel,
    options: BuildOptions,
    geometry: CacheGeometry,
    together: int,
) -> int:
    """Activations. Latents: all heads of the device's requests, and its columns of all requests."""
    if together == 1:
        return Activations(share, options, geometry, 1).decode()
    own = replace(share, facts=share.facts.model_copy(update=_heads(model)))
    rows = together * options.batch
    of_all = Activations(share, options, geometry, 1).layer(rows)
    return Activations(own, options, geometry, 1).decode() + of_all


def _heads(model: PlannedModel) -> dict[str, int]:
    return {"num_attention_heads": model.facts.layer(0).heads}


def _groups(
    model: PlannedModel, devices: int, role: Role, options: BuildOptions
) -> Iterator[tuple[Group, int]]:
    """Bytes of a device's weights by what they are."""
    share, item = device_model(model, devices, role), BY_FLAG[options.dtype].bytes
    kept = set(share.fp8.names) if share.fp8 and options.weights == "fp8" else set()
    found: dict[Group, int] = dict.fromkeys(("vocabulary", "attention", "MLP"), 0)
    for cut in cut_matrices(model, devices, role):
        nbytes = fp8_bytes(share, cut.elements) if cut.name in kept else cut.elements * item
        found[cut.group] = found.get(cut.group, 0) + nbytes
    found["vocabulary"] += 0 if model.tied else share.embedding * item
    found["on every device"] = found.get("on every device", 0) + share.others * item
    found["experts"] = stored_bytes(share, options) - sum(found.values())
    yield from found.items()
