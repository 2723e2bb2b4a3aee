"""The compared systems: equal cache slots, and the build's own choices as defaults."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from snapexport.builder.options import BuildOptions
from snapexport.contract.geometry import POLICIES, CacheGeometry
from snapexport.contract.model_facts import ModelFacts
from snapexport.contract.slots import Slots
from snapexport.errors import UserError
from snapexport.measure.eval.systems import System, SystemMaker, typical_layer
from tests.facts import model_facts

L_MAX = 512
VARIANTS = ("snapstream:L_obs=3,pool=max", "snapstream:L_recent=9", "snapstream:K=7,L_sink=2")


def model(windows: tuple[int, ...] = (0,) * 6) -> ModelFacts:
    return model_facts(len(windows), sliding_window=list(windows))


def geometry(facts: ModelFacts, **choices: Any) -> CacheGeometry:
    return BuildOptions.of(model="", out=Path(), L_max=L_MAX, **choices).geometry(facts)


def found(own: CacheGeometry, facts: ModelFacts, names: Any, budgets: Any) -> list[System]:
    return SystemMaker(facts, L_MAX, own, 64).systems(names, budgets)


OWN: dict[str, dict[str, Any]] = {
    "default": {},
    "tiny": {"kv_budget": 8, "L_sink": 2},
    "uneven": {"L_recent": 37, "K": 10, "L_obs": 5, "pool_kernel": 3, "vote": "sum-squares"},
    "no sinks": {"L_sink": 0, "kv_budget": 100, "pool": "max", "group": "max"},
    "pseudo": {"kv_budget": 64, "vote_queries": "pseudo"},
    "pyramid": {"kv_budget": 64, "budget": "pyramid"},
    "steep pyramid": {"L_recent": 40, "K": 9, "budget": "pyramid"},
    "streaming": {"policy": "streaming", "kv_budget": 48},
    "sage": {"policy": "sage", "kv_budget": 48},
    "snapkv": {"policy": "snapkv", "kv_budget": 48, "L_recent": 11},
    "steps of several tokens": {"kv_budget": 64, "tokens_per_step": 4},
}
WINDOWS = {"all see all": (0,) * 6, "some slide": (32, 0, 32, 0, 0)}


@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("name", OWN)
def test_the_builds_policy_at_its_own_budget_gives_its_own_geometry(
    name: str, windows: str
) -> None:
    facts = model(WINDOWS[windows])
    own = geometry(facts, **OWN[name])
    (system,) = found(own, facts, [own.policy], [typical_layer(own, facts).size])
    assert system.geometry == replace(own, steps=system.geometry.steps)


@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("name", OWN)
def test_every_system_has_the_cache_slots_of_its_budget(name: str, windows: str) -> None:
    facts = model(WINDOWS[windows])
    own = geometry(facts, **OWN[name])
    budgets = (24, 25, 31, 64, 100, 257, 511)
    names = [*POLICIES, *VARIANTS]
    systems = found(own, facts, names, budgets)
    assert len(systems) == 1 + (len(names) - 1) * len(budgets)
    for one in systems:
        pairs = zip(one.geometry.layers, facts.sliding_window, strict=True)
        slots = [layer.cache_slots for layer, window in pairs if not window]
        assert sum(slots) == one.slots * len(slots)
        if one.geometry.vote.budget == "uniform":
            assert set(slots) == {one.slots}


def test_systems_inherit_the_builds_choices() -> None:
    facts = model()
    own = geometry(
        facts, L_sink=2, L_recent=20, K=60, L_obs=5, pool_kernel=3, vote="sum-squares", group="max"
    )
    plain, other, sage, snapkv, streaming = (
        one.geometry
        for one in found(
            own, facts, ["snapstream", "snapstream:L_obs=9", "sage", "snapkv", "streaming"], [42]
        )
    )
    assert [layer.L_recent for layer in plain.layers] == [10] * 6  # a quarter of 40, as in `own`
    assert (plain.slots.L_sink, plain.slots.K) == (2, 30)
    assert (plain.vote.L_obs, plain.vote.pool_kernel) == (5, 3)
    assert (plain.vote.vote, plain.vote.group) == ("sum-squares", "max")
    assert other == replace(plain, vote=replace(plain.vote, L_obs=9))
    assert (sage.vote.L_obs, sage.vote.pool_kernel, sage.vote.vote) == (1, 1, "sum")
    assert (snapkv.slots.L_sink, snapkv.vote.softmax, snapkv.vote.pool_kernel) == (0, "causal", 7)
    assert streaming.slots == Slots(facts.num_hidden_layers, L_sink=2, L_recent=40, K=0)


def test_choices_that_the_builds_policy_fixes_are_not_inherited() -> None:
    facts = model()
    plain = geometry(facts, kv_budget=48)
    for policy in ("sage", "snapkv", "streaming"):
        own = geometry(facts, policy=policy, kv_budget=48)
        (system,) = found(own, facts, ["snapstream"], [48])
        assert system.geometry == plain


def test_default_ring_and_pool_kernel_follow_the_budget_and_given_ones_are_inherited() -> None:
    facts = model()
    for own, rings, kernels in (
        (geometry(facts, kv_budget=128), [18, 30, 62], [7, 21, 31]),
        (geometry(facts, kv_budget=32), [18, 30, 62], [7, 21, 31]),
        (geometry(facts, kv_budget=128, pool_kernel=15), [18, 30, 62], [15, 15, 15]),
        (geometry(facts, kv_budget=128, L_recent=31), [7, 15, 31], [15, 31, 31]),
    ):
        systems = found(own, facts, ["snapstream"], [32, 64, 128])
        assert [one.ring for one in systems] == rings
        assert [one.geometry.vote.pool_kernel for one in systems] == kernels


def test_an_inherited_window_shrinks_to_a_smaller_ring() -> None:
    facts = model()
    own = geometry(facts, kv_budget=128, L_obs=32)
    for name in ("snapstream", "snapstream:L_recent=7", "snapstream:K=90"):
        small = found(own, facts, [name], [100])[0].geometry
        assert small.vote.L_obs == min(32, small.layers[0].L_recent)


def test_the_full_cache_is_one_system_at_any_budgets() -> None:
    facts = model()
    full, *rest = found(geometry(facts), facts, ["full", "streaming"], [16, 32])
    assert (full.slots, full.ring, full.votes) == (L_MAX, 0, False)
    assert [(one.name, one.slots, one.ring) for one in rest] == [
        ("streaming", 16, 12),
        ("streaming", 32, 28),
    ]


@pytest.mark.parametrize(
    ("name", "slots", "message"),
    [
        ("magic", 64, "--policies 'magic' is not known"),
        ("", 64, "--policies '' is not known"),
        ("snapstream:window=3", 64, "a cache has no field 'window'"),
        ("snapstream:kv_budget=3", 64, "a cache has no field 'kv_budget'"),
        ("snapstream:L_obs", 64, "L_obs is ''"),
        ("snapstream:L_obs=many", 64, "L_obs is 'many'"),
        ("snapstream:L_obs=1,L_obs=2", 64, "has L_obs twice"),
        ("snapstream:pool=median", 64, "--pool 'median' is not known"),
        ("snapstream:L_recent=8,K=8", 64, "given together with both"),
        ("snapstream:L_obs=40", 64, "--L-obs 40 is larger than --L-recent 30"),
        (
            "snapstream",
            3,
            "'snapstream' in 3 slots: --budgets 3 is below 5, the sum of 4 sinks and",
        ),
        ("snapstream:K=7", 9, "--budgets 9 is below 12, the sum of 4 sinks and a ring of at least"),
        ("streaming", 4, "--budgets 4 is below 5, the sum of 4 sinks and a ring of at least 1"),
        ("snapstream", 600, "'snapstream' in 600 slots: --budgets 600 is more than --L-max 512"),
        ("streaming:K=8", 64, "--K 8 is not supported with --policy streaming"),
        ("sage:L_obs=4", 64, "--policy sage means --L-obs 1"),
        ("snapstream:prefill=rows", 64, "prefill 'rows' is not known"),
        ("full:prefill=blocks", 64, "--extend is not supported with --policy full"),
        ("full:L_sink=4", 64, "'full:L_sink=4': --L-sink 4 is not supported with --policy full"),
    ],
)
def test_an_invalid_policy_or_budget_is_refused(name: str, slots: int, message: str) -> None:
    facts = model()
    with pytest.raises(UserError) as refused:
        found(geometry(facts), facts, [name], [slots])
    assert message in refused.value.message
    assert "--kv-budget" not in refused.value.message + str(refused.value.hint)


@pytest.mark.parametrize("name", ["snapstream", "snapstream:K=7", "snapstream:L_recent=9"])
def test_the_least_budget_that_a_refusal_names_is_one(name: str) -> None:
    facts = model()
    with pytest.raises(UserError) as refused:
        found(geometry(facts), facts, [name], [1])
    (least,) = map(int, re.findall(r"use --budgets (\d+) or more", str(refused.value.hint)))
    assert found(geometry(facts), facts, [name], [least])[0].slots == least
    with pytest.raises(UserError, match=f"is below {least}"):
        found(geometry(facts), facts, [name], [least - 1])


def test_a_model_with_only_sliding_layers_is_refused() -> None:
    facts = model((32, 32))
    with pytest.raises(UserError, match="every layer of the model has a sliding window"):
        typical_layer(geometry(facts), facts)


def test_a_system_may_take_prompts_in_blocks() -> None:
    facts = model()
    names = "snapstream", "snapstream:prefill=blocks,L_obs=3", "streaming:prefill=blocks"
    chunks, blocks, streaming = found(geometry(facts), facts, names, [64])
    assert (chunks.in_blocks, blocks.in_blocks, streaming.in_blocks) == (False, True, True)
    assert blocks.geometry == replace(chunks.geometry, vote=replace(chunks.geometry.vote, L_obs=3))
    assert [one.report()["prefill"] for one in (chunks, blocks)] == ["chunks", "blocks"]


def test_queries_that_vote_are_the_builds_unless_a_policy_names_others() -> None:
    facts = model()
    own = geometry(facts, kv_budget=64, vote_queries="pseudo")
    names = "snapstream", "snapkv", "snapstream:vote_queries=prompt", "streaming", "full"
    systems = found(own, facts, names, [64])
    W = own.vote.L_obs
    assert [one.geometry.after_prompt for one in systems] == [W, W, 0, 0, 0]
    assert systems[0].report()["vote_queries"] == "pseudo"
    (sage,) = found(geometry(facts, kv_budget=64, vote_queries="repeat"), facts, ["sage"], [64])
    assert (sage.geometry.vote.vote_queries, sage.geometry.vote.L_obs) == ("prompt", 1)
    with pytest.raises(UserError, match="--vote-queries 'foo' is not known"):
        found(own, facts, ["snapstream:vote_queries=foo"], [64])
