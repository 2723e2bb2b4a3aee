"""Cuts a model by tensor parallelism: a device's share is a smaller model.

    heads         queries by query head, keys and values by KV head, the output by columns
    MLP, experts  each cut inside: gate and up by rows, down by columns
    vocabulary    embedding and head by rows
    every device  norms, routers, and what makes latents (q_a, kv_a), which all heads read

A KV head lies on several devices if there are fewer KV heads than devices. Latents (MLA) have no
heads: in prefill each device has the whole prompt's. In decode attention is parallel over the
batch, so kv_b, which every device needs for its own requests, is whole. Nothing communicates here.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from snapexport.builder.plan.model import PlannedModel
from snapexport.errors import UserError

Role = Literal["prefill", "decode"]
Group = Literal["vocabulary", "attention", "MLP", "experts", "on every device"]

_ROWS = ("q_proj", "q_b_proj", "gate_proj", "up_proj", "k_proj", "v_proj")
_COLUMNS = ("o_proj", "down_proj")
_OF_KV_HEADS = ("k_proj", "v_proj")
_OF_MLP = ("gate_proj", "up_proj", "down_proj")
_LATENT_UP = "kv_b_proj"


@dataclass(frozen=True)
class Cut:
    """A device's share of a matrix."""

    name: str
    group: Group
    shape: tuple[int, int]

    @property
    def elements(self) -> int:
        return self.shape[0] * self.shape[1]


def possible(model: PlannedModel, most: int = 1024) -> list[int]:
    """The numbers of devices that the model can be cut for."""
    return [devices for devices in range(1, most + 1) if not _obstacle(model, devices)]


def require_devices(model: PlannedModel, devices: int) -> None:
    """Raise UserError for a number of devices that the model cannot be cut for."""
    if obstacle := _obstacle(model, devices):
        numbers = ", ".join(map(str, possible(model)))
        raise UserError(f"--devices {devices}: {obstacle}", f"possible here: {numbers}")


def _obstacle(model: PlannedModel, devices: int) -> str | None:
    facts = model.facts
    if devices < 1:
        return "there has to be a device"
    heads, kv_heads, *_ = facts.layer(0)
    if heads % devices:
        return f"{heads} attention heads are no multiple of it"
    if not facts.latent and kv_heads % devices and devices % kv_heads:
        return f"{kv_heads} KV heads neither divide it nor are a multiple of it"
    for name, (rows, columns) in zip(model.names, model.linear, strict=False):
        if _ends(name, _OF_MLP) and (columns if _ends(name, _COLUMNS) else rows) % devices:
            return f"the MLP's {min(rows, columns)} to {max(rows, columns)} columns cannot be cut"
    if model.experts and model.experts.width % devices:
        return f"experts of width {model.experts.width} cannot be cut"
    return None


def cut_matrices(model: PlannedModel, devices: int, role: Role) -> Iterator[Cut]:
    """Every matrix but the experts' and the embedding table; the head comes last."""
    assert len(model.names) == len(model.linear) - 1, "the matrices have no names"
    for name, shape in zip(model.names, model.linear, strict=False):
        yield _cut(name, shape, devices, model.facts.layer(0).kv_heads, role)
    vocabulary, width = model.linear[-1]
    yield Cut("head", "vocabulary", (-(-vocabulary // devices), width))


def _cut(name: str, shape: tuple[int, int], devices: int, kv_heads: int, role: Role) -> Cut:
    rows, columns = shape
    group: Group = "MLP" if _ends(name, _OF_MLP) else "attention"
    if _ends(name, _OF_KV_HEADS):
        return Cut(name, group, (rows // min(devices, kv_heads), columns))
    if _ends(name, _ROWS) or (role == "prefill" and _ends(name, (_LATENT_UP,))):
        return Cut(name, group, (rows // devices, columns))
    if _ends(name, _COLUMNS):
        return Cut(name, group, (rows, columns // devices))
    return Cut(name, "on every device", shape)


def device_model(model: PlannedModel, devices: int, role: Role) -> PlannedModel:
    """A device's share, as a model. Its attention has a device's heads."""
    heads, kv_heads, *_ = model.facts.layer(0)
    cuts = list(cut_matrices(model, devices, role))
    shapes = {cut.name: cut.shape for cut in cuts}
    experts = model.experts and replace(model.experts, width=model.experts.width // devices)
    fp8 = model.fp8 and replace(model.fp8, linear=tuple(shapes[one] for one in model.fp8.names))
    changed = {
        "num_attention_heads": heads // devices,
        "num_key_value_heads": max(1, kv_heads // devices),
        "vocab_size": cuts[-1].shape[0],
    }
    return replace(
        model,
        facts=model.facts.model_copy(update=changed),
        intermediate_size=model.intermediate_size // devices,
        linear=tuple(cut.shape for cut in cuts),
        experts=experts,
        fp8=fp8,
    )


def _ends(name: str, ends: tuple[str, ...]) -> bool:
    return name.removesuffix(".weight").rpartition(".")[2] in ends
