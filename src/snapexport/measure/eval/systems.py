"""Chooses the caches that an evaluation compares, and loads each as a build of its own.

Every cache is made from the build's own traces, on one copy of the weights. Prompts are prefilled
once and shared. Knows no task.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, cast, get_type_hints

from snapexport.builder.options import DEFAULT_L_SINK, BuildOptions, cache_fields
from snapexport.contract.geometry import POLICIES, CacheGeometry, Policy
from snapexport.contract.graph_options import PREFILLS, MethodOptions, require_one_of
from snapexport.contract.model_facts import ModelFacts
from snapexport.contract.policies import (
    PRESET_DEFAULTS,
    PRESETS,
    VOTE_FIELDS,
    default_pool_kernel,
    default_ring,
)
from snapexport.contract.slots import LayerGeometry
from snapexport.contract.vote import Voter
from snapexport.errors import UserError
from snapexport.methods import table

Choices = dict[str, Any]
"""Fields of BuildOptions: whole numbers and names."""


def _fields() -> tuple[str, ...]:
    """The fields that a system may change: what a build's traces hold is theirs."""
    kinds = table.option_fields()
    traced = {name for name, kind in kinds.items() if _of_traces(kind, name)}
    return tuple(name for name in cache_fields() if name not in {"kv_budget", *traced})


def _of_traces(kind: type[MethodOptions], name: str) -> bool:
    field = next(one for one in fields(kind) if one.name == name)
    return bool(field.metadata.get("of_traces"))


@dataclass(frozen=True)
class System:
    """One cache. name: "POLICY" or "POLICY:field=value,...". slots: cache slots of a layer.

    A layer with a sliding window has as many slots as its window instead, whatever the policy.
    in_blocks: whether prompts go block by block onto the compressed row.
    """

    name: str
    slots: int
    geometry: CacheGeometry
    in_blocks: bool = False

    @property
    def ring(self) -> int:
        """Cache slots of the largest ring, 0 where nothing is evicted."""
        return max(layer.L_recent for layer in self.geometry.layers)

    def report(self) -> dict[str, Any]:
        """For JSON."""
        geometry = self.geometry
        layers = [[layer.L_sink, layer.L_recent, layer.K] for layer in geometry.layers]
        return {
            "system": self.name,
            "slots": self.slots,
            "policy": geometry.policy,
            "L_sink_L_recent_K": layers[0] if len(set(map(tuple, layers))) == 1 else layers,
            "L_obs": geometry.vote.L_obs,
            "pool_kernel": geometry.vote.pool_kernel,
            "vote": geometry.vote.options,
            "budget": geometry.vote.budget,
            "vote_queries": geometry.vote.vote_queries,
            "prefill": "blocks" if self.in_blocks else "chunks",
        }

    @property
    def votes(self) -> bool:
        """Whether a compress step keeps voted positions: blocks have none."""
        return not self.in_blocks and self.geometry.votes


@dataclass(frozen=True)
class SystemMaker:
    """Makes systems for one model and longest prompt. own, prefill_chunk: the build's."""

    model: ModelFacts
    L_max: int
    own: CacheGeometry
    prefill_chunk: int

    def systems(self, names: Sequence[str], budgets: Sequence[int]) -> list[System]:
        """The full cache once, every other policy at each budget. Raises UserError."""
        return [
            self._system(name, slots)
            for name in names
            for slots in (budgets if _parse(name)[0] != "full" else (None,))
        ]

    def _system(self, name: str, slots: int | None) -> System:
        policy, changes = _parse(name)
        in_blocks = changes.pop("prefill", None) == "blocks"
        choices = (self._inherit(policy, slots, changes) if slots else {}) | changes
        choices = self._without_other_queries(choices) | changes
        try:
            choices |= {"L_max": self.L_max, "policy": policy}
            for given in table.in_blocks(in_blocks):
                choices |= vars(given)
            options = BuildOptions.of(model="", out=Path(), **choices)
            geometry = options.geometry(self.model, like=self.own)
        except UserError as error:
            where = f"'{name}'" + (f" in {slots} slots" if slots else "")
            raise UserError(
                f"{where}: {error.message}".replace("--kv-budget", "--budgets"),
                f"{error.hint}; here a field is written as in snapstream:L_obs=8".replace(
                    "--kv-budget", "--budgets"
                ),
            ) from None
        return System(name, slots or self.L_max, geometry, in_blocks)

    def _without_other_queries(self, choices: Choices) -> Choices:
        """Drop the choices that make no sense under the other `vote_queries`.

        Those that need no window have their own vote too.
        """
        name = choices.get("vote_queries", Voter().name)
        voter = table.voters().get(name)
        if voter is None:
            return choices  # refused with the other fields
        dropped = {*voter.unused}
        if "L_obs" in self.own.vote.voter.unused:  # the build's own says nothing
            dropped.add("L_obs")
        kept = {name: value for name, value in choices.items() if name not in dropped}
        kept |= {"prefill_chunk": self.prefill_chunk} if voter.takes_chunk else {}
        kind = next(one.options for one in table.METHODS if voter in one.voters)
        of_traces = [one.name for one in fields(kind) if _of_traces(kind, one.name)] if kind else []
        return kept | dict.fromkeys(of_traces, Path("traces"))

    def _inherit(self, policy: Policy, slots: int, changes: Choices) -> Choices:
        """The build's choices in a cache of `slots`, without those that either policy fixes."""
        own = typical_layer(self.own, self.model)
        votes = own.K > 0 and policy != "streaming"
        fixed = self._fixed_fields(policy, changes)
        choices = {"L_sink": own.L_sink} | (self._vote_fields(own) if votes else {})
        choices = {name: value for name, value in choices.items() if name not in fixed}
        if votes:
            sinks = {"L_sink": DEFAULT_L_SINK, **choices, **PRESETS[policy], **changes}["L_sink"]
            ring = _ring(slots - sinks, own, changes)
            if not {"L_recent", "K"} & changes.keys():
                choices["L_recent"] = ring
            if "L_obs" not in fixed:
                choices["L_obs"] = max(1, min(self.own.vote.L_obs, ring))
        return {"kv_budget": slots} | choices

    def _fixed_fields(self, policy: Policy, changes: Choices) -> set[str]:
        """Fields that the build's policy or the other one decides, or that a change replaces."""
        tables = [PRESETS] if policy == self.own.policy else [PRESETS, PRESET_DEFAULTS]
        policies = policy, self.own.policy
        fixed = {name for table in tables for each in policies for name in table.get(each, {})}
        if "L_obs" in PRESETS[policy]:  # its window votes
            fixed.add("vote_queries")
        budgets = (one for one in table.METHODS if one.budget)
        own = (one.options for one in budgets if one.options)
        given = any(field.name in changes for kind in own for field in fields(kind))
        return fixed | ({"budget"} if given else set())

    def _vote_fields(self, own: LayerGeometry) -> Choices:
        """The build's vote; its pool kernel only if it was chosen, as the default follows K."""
        choices: Choices = {name: getattr(self.own.vote, name) for name in VOTE_FIELDS}
        if self.own.vote.pool_kernel != default_pool_kernel(own.K):
            choices["pool_kernel"] = self.own.vote.pool_kernel
        return choices


def _ring(free: int, own: LayerGeometry, changes: Mapping[str, int]) -> int:
    """L_recent: as given, or the default if it is the build's, or the build's share of `free`."""
    if "L_recent" in changes:
        return changes["L_recent"]
    if "K" in changes:
        return free - changes["K"]
    voted = own.L_recent + own.K
    if own.L_recent == default_ring(voted):
        return max(1, default_ring(free))
    return max(1, round(free * own.L_recent / voted))


def typical_layer(geometry: CacheGeometry, model: ModelFacts) -> LayerGeometry:
    """A layer without a sliding window, with the mean K of all heads of such layers. Raises
    UserError."""
    held = geometry.slots.heads_held(model.kv_heads)
    layers = [
        layer
        for cache, heads, layer in zip(geometry.slots.caches, held, geometry.layers, strict=True)
        for _ in range(0 if model.layer(cache.layer).reach else heads)
    ]
    if not layers:
        raise UserError(
            "every layer of the model has a sliding window, whose ring loses nothing",
            "use `snapexport diff`, which compares the build with transformers",
        )
    return replace(layers[0], K=round(sum(layer.K for layer in layers) / len(layers)))


def _parse(name: str) -> tuple[Policy, Choices]:
    """A policy, and its choices."""
    policy, _, listed = name.partition(":")
    require_one_of("--policies", policy, POLICIES)
    changes: Choices = {}
    for pair in filter(None, listed.split(",")):
        field, _, value = pair.partition("=")
        if field in changes:
            raise UserError(f"'{name}' has {field} twice", "leave one of them out")
        changes[field] = _value(name, field, value)
    return cast(Policy, policy), changes


def _value(name: str, field: str, value: str) -> int | str | Path:
    if field == "prefill":
        require_one_of("prefill", value, PREFILLS)
        return value
    if field not in _fields():
        raise UserError(
            f"'{name}': a cache has no field '{field}'",
            f"its fields are {', '.join(_fields())}, and prefill=blocks",
        )
    if field in VOTE_FIELDS:
        return value
    if _takes_path(field):
        return Path(value)
    try:
        return int(value)
    except ValueError:
        raise UserError(
            f"'{name}': {field} is '{value}'", f"write {field}=N with a whole number"
        ) from None


def _takes_path(field: str) -> bool:
    kind = table.option_fields().get(field)
    return kind is not None and get_type_hints(kind)[field] == Path | None
