"""Each model-local function, run alone by ONNX Runtime, against its definition in plain Python."""

from dataclasses import asdict
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from snapexport.contract.slots import LayerGeometry
from snapexport.graphs.functions import NAMES
from snapexport.graphs.functions.experts import Experts
from snapexport.graphs.functions.vote import DEFAULTS, STAGES
from tests.graphs import bodies
from tests.graphs.bodies import calling, function

Array = NDArray[Any]


def run(
    name: str,
    feeds: dict[str, Array],
    attributes: dict[str, Any],
    vote: dict[str, str] = DEFAULTS,
) -> list[Array]:
    """Call the function on the feeds, in their order. vote: the options of SnapKVSelect."""
    of = Experts(biased="down_bias" in feeds)
    pool_kernel = attributes.get("pool_kernel", [1, 1])[1]
    proto = function(name, vote, pool_kernel=pool_kernel, of=of)
    return [*bodies.run(calling(proto, feeds, **attributes), feeds).values()]


@pytest.mark.parametrize("name", NAMES)
def test_every_function_body_has_only_standard_operators(name: str) -> None:
    proto = function(name)
    assert [(opset.domain, opset.version) for opset in proto.opset_import] == [("", 24)]
    assert {node.domain for node in proto.node} == {""}


@pytest.mark.parametrize("longest", [11, 12, 13, 20])
def test_ring_slot_function_equals_the_geometry(longest: int) -> None:
    place = LayerGeometry(L_sink=3, L_recent=5, K=4)
    positions = np.arange(40)
    lengths = np.minimum(positions + 1, longest)
    feeds = {"position_ids": positions[:, None], "prompt_length": lengths}
    slot, valid = run("RingSlot", feeds, {"L_sink": 3, "L_recent": 5, "K": 4})
    pairs = list(zip(positions.tolist(), lengths.tolist(), strict=True))
    assert slot.tolist() == [place.cache_slot(p, length) for p, length in pairs]
    assert valid.tolist() == [place.valid(p) for p in positions]


@pytest.mark.parametrize(("valid", "first"), [(8, 5), (5, 2), (3, 0)])
def test_query_window_is_the_last_valid_rows(valid: int, first: int) -> None:
    query = np.random.default_rng(0).standard_normal((1, 2, 8, 4)).astype(np.float32)
    feeds = {"query": query, "chunk_length": np.array([valid])}
    (window,) = run("QueryWindow", feeds, {"L_obs": [3]})
    assert np.array_equal(window, query[:, :, first : first + 3])


def vote(
    query: Array,
    key: Array,
    length: int,
    place: LayerGeometry,
    kernel: int,
    options: dict[str, str],
) -> list[Any]:
    """SnapKV's vote of one KV head, written with torch: query [G,W,D], key [T,D]."""
    if place.kept(length) == 0:
        return [-1] * place.K
    span = slice(place.L_sink, length - place.L_recent)
    scores = torch.from_numpy(query @ key[:length].T / np.sqrt(key.shape[1])).double()
    if options["softmax"] == "candidates":
        share = scores[..., span].softmax(-1)
    else:
        future = torch.ones_like(scores).triu(length - query.shape[1] + 1).bool()
        share = scores.masked_fill(future, -torch.inf).softmax(-1)[..., span]
    share = share**2 if options["vote"] == "sum-squares" else share
    votes = share.sum(1, keepdim=True)
    if options["pool"] == "max":
        pooled = torch.nn.functional.max_pool1d(votes, kernel, 1, kernel // 2)
    else:
        pooled = torch.nn.functional.avg_pool1d(votes, kernel, 1, kernel // 2)
    group = {"mean": pooled.mean, "max": pooled.amax, "sum": pooled.sum}[options["group"]]
    # Stable: a highest vote is its neighbours' too, and ties go to the lower position.
    ranked = group(0)[0].sort(descending=True, stable=True).indices
    best = ranked[: place.kept(length)] + place.L_sink
    return sorted(best.tolist()) + [-1] * (place.K - place.kept(length))


EVERY_VOTE = [dict(zip(STAGES, names, strict=True)) for names in product(*STAGES.values())]


@pytest.mark.parametrize("options", EVERY_VOTE, ids=lambda options: "-".join(options.values()))
def test_select_keeps_the_winners_of_the_vote(options: dict[str, str]) -> None:
    place, kernel = LayerGeometry(L_sink=2, L_recent=7, K=6), 5
    for length in (5, 10, 15, 16, 40, 64):
        rng = np.random.default_rng(length)
        query = 3 * rng.standard_normal((1, 4, 3, 8)).astype(np.float32)
        key = rng.standard_normal((1, 2, 64, 8)).astype(np.float32)
        feeds = {"query_window": query, "key": key, "prompt_length": np.array([length])}
        attributes = asdict(place) | {"K": [6], "pool_kernel": [1, kernel], "scale": 8**-0.5}
        (kept,) = run("SnapKVSelect", feeds, attributes, options)
        expected = [
            vote(query[0, 2 * head : 2 * head + 2], key[0, head], length, place, kernel, options)
            for head in range(2)
        ]
        assert kept[0].tolist() == expected


@pytest.mark.parametrize("stage", STAGES)
def test_each_vote_option_can_change_the_kept_positions(stage: str) -> None:
    """Sum and mean over a group of fixed size rank alike: each stage has two outcomes."""
    attributes = {"L_sink": 2, "L_recent": 7, "K": [6], "pool_kernel": [1, 5], "scale": 0.35}
    rng = np.random.default_rng(0)
    key = rng.standard_normal((1, 2, 64, 8)).astype(np.float32)
    queries = [4 * rng.standard_normal((1, 4, 3, 8)).astype(np.float32) for _ in range(8)]
    kept = set()
    for name in STAGES[stage]:
        feeds = [{"query_window": q, "key": key, "prompt_length": np.array([60])} for q in queries]
        options = DEFAULTS | {stage: name}
        kept.add(str([run("SnapKVSelect", one, attributes, options) for one in feeds]))
    assert len(kept) == 2


def test_select_resolves_ties_to_the_lower_position() -> None:
    query, key = np.zeros((1, 2, 3, 4), np.float32), np.ones((1, 1, 32, 4), np.float32)
    feeds = {"query_window": query, "key": key, "prompt_length": np.array([30])}
    attributes = {"L_sink": 2, "L_recent": 4, "K": [3], "pool_kernel": [1, 1], "scale": 0.5}
    (kept,) = run("SnapKVSelect", feeds, attributes)
    assert kept[0, 0].tolist() == [2, 3, 4]


@pytest.mark.parametrize("spare", [0, 4])
@pytest.mark.parametrize("length", [1, 2, 5, 9, 10, 12, 13, 14, 23])
def test_gather_puts_every_position_into_its_slot(length: int, spare: int) -> None:
    place = LayerGeometry(L_sink=2, L_recent=7, K=3, spare=spare)
    key = np.random.default_rng(0).standard_normal((1, 2, 24, 4)).astype(np.float32)
    kept = np.full((1, 2, 3), -1)
    kept[..., : place.kept(length)] = np.arange(2, 2 + place.kept(length))
    feeds = {"key": key, "value": -key, "prompt_length": np.array([length]), "topk": kept}
    ring = {"L_sink": 2, "L_recent": 7, "spare": spare}
    present_key, present_value = run("SnapStreamGather", feeds, ring)
    sources = place.source_positions(length, kept[0, 0].tolist())
    assert present_key.shape[2] == len(sources)
    for slot, source in enumerate(sources):
        expected = key[:, :, source] if source >= 0 else np.zeros((1, 2, 4))
        # Spare slots may have what no step sees.
        assert source < 0 < spare or np.array_equal(present_key[:, :, slot], expected)
    assert np.array_equal(present_value, -present_key)
