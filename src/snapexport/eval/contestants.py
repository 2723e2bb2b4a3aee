"""Which caches are measured: the build's own, and others of as many slots on the same weights."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from snapexport.builder.options import CACHE_FIELDS, DEFAULT_L_SINK, BuildOptions
from snapexport.builder.presets import PRESET_DEFAULTS, PRESETS, VOTE_FIELDS
from snapexport.contract.errors import UserError
from snapexport.contract.geometry import POLICIES, CacheGeometry, LayerGeometry, Policy
from snapexport.contract.manifest import ModelFacts

Choices = dict[str, Any]
"""Fields of BuildOptions: whole numbers and names."""

_FIELDS = tuple(name for name in CACHE_FIELDS if name != "kv_budget")


@dataclass(frozen=True)
class Contestant:
    """One cache. name: as asked for, "POLICY" or "POLICY:field=value,...". slots: of a layer.

    Layers that slide have as many slots as their window instead, whatever the policy.
    """

    name: str
    slots: int
    geometry: CacheGeometry

    @property
    def ring(self) -> int:
        """Slots of the largest ring, 0 where nothing is evicted."""
        return max(layer.L_recent for layer in self.geometry.layers)

    @property
    def votes(self) -> bool:
        """Whether any layer keeps what a vote picks."""
        return any(layer.K for layer in self.geometry.layers)


@dataclass(frozen=True)
class Lineup:
    """What all contestants have in common: the model, the longest prompt, the build's choices."""

    model: ModelFacts
    L_max: int
    own: CacheGeometry

    def contestants(self, names: Sequence[str], budgets: Sequence[int]) -> list[Contestant]:
        """The full cache once, every other one at each budget. Raises UserError."""
        return [
            self._contestant(name, slots)
            for name in names
            for slots in (budgets if _parse(name)[0] != "full" else (None,))
        ]

    def _contestant(self, name: str, slots: int | None) -> Contestant:
        policy, changes = _parse(name)
        choices = self._like_the_build(policy, slots, changes) if slots else {}
        try:
            options = BuildOptions(
                model="", out=Path(), L_max=self.L_max, policy=policy, **choices | changes
            )
            geometry = options.geometry(self.model)
        except UserError as error:
            where = f"'{name}'" + (f" in {slots} slots" if slots else "")
            raise UserError(
                f"{where}: {error.message}",
                f"{error.hint}; here a field is written as in snapstream:L_obs=8, and the budget "
                "is one of --budgets",
            ) from None
        return Contestant(name, slots or self.L_max, geometry)

    def _like_the_build(self, policy: Policy, slots: int, changes: Choices) -> Choices:
        """The build's own choices, as far as neither policy dictates them, in so many slots."""
        own = typical_layer(self.own, self.model)
        choices: Choices = {"L_sink": own.L_sink}
        both_vote = own.K > 0 and policy != "streaming"
        if both_vote:
            choices |= {name: getattr(self.own, name) for name in ("pool_kernel", *VOTE_FIELDS)}
        dictated = PRESETS[policy].keys() | PRESETS[self.own.policy].keys()
        if policy != self.own.policy:
            for one in (policy, self.own.policy):
                dictated |= PRESET_DEFAULTS.get(one, {}).keys()
        choices = {name: value for name, value in choices.items() if name not in dictated}
        if both_vote:
            sinks = {"L_sink": DEFAULT_L_SINK, **choices, **PRESETS[policy], **changes}["L_sink"]
            ring = _ring(slots - sinks, own, changes)
            if not {"L_recent", "K"} & changes.keys():
                choices["L_recent"] = ring
            if "L_obs" not in dictated:
                choices["L_obs"] = max(1, min(self.own.L_obs, ring))
        return {"kv_budget": slots} | choices


def _ring(free: int, own: LayerGeometry, changes: Mapping[str, int]) -> int:
    """L_recent: as asked for, or the build's share of what the sinks leave free."""
    if "L_recent" in changes:
        return changes["L_recent"]
    if "K" in changes:
        return free - changes["K"]
    return max(1, round(free * own.L_recent / (own.L_recent + own.K)))


def typical_layer(geometry: CacheGeometry, model: ModelFacts) -> LayerGeometry:
    """A layer that sees everything, with the mean of their top-k slots. Raises UserError.

    Layers that slide over a window are not what a budget is about.
    """
    pairs = zip(geometry.layers, model.sliding_window, strict=True)
    layers = [layer for layer, window in pairs if not window]
    if not layers:
        raise UserError(
            "every layer of the model slides over its newest positions: their rings are exact",
            "there is nothing to evaluate; `snapexport diff` compares the build with transformers",
        )
    return replace(layers[0], K=round(sum(layer.K for layer in layers) / len(layers)))


def _parse(name: str) -> tuple[Policy, Choices]:
    """A policy, and its choices."""
    policy, _, listed = name.partition(":")
    if policy not in POLICIES:
        raise UserError(f"no policy '{policy}'", f"choose from {', '.join(POLICIES)}")
    changes: Choices = {}
    for pair in filter(None, listed.split(",")):
        field, _, value = pair.partition("=")
        if field in changes:
            raise UserError(f"'{name}' has {field} twice", "leave one of them out")
        changes[field] = _value(name, field, value)
    return policy, changes


def _value(name: str, field: str, value: str) -> int | str:
    if field not in _FIELDS:
        raise UserError(
            f"'{name}': a cache has no field '{field}'", f"its fields are {', '.join(_FIELDS)}"
        )
    if field in VOTE_FIELDS:
        return value
    try:
        return int(value)
    except ValueError:
        raise UserError(
            f"'{name}': {field} is '{value}'", f"write {field}=N with a whole number"
        ) from None
