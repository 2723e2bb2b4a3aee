"""The published methods' own kept positions, and ours: equal where the definitions are.

Where ours differs on purpose, a test shows the difference and says why. `make goldens` made the
files: SnapKV, KVCache-Factory and KV-Compress by their definitions, held to their code; kvpress
running.
"""

import json
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from snapexport.contract.policies import pyramid
from snapexport.contract.slots import LayerGeometry
from tests.builds import build
from tests.graphs.test_functions import run
from tests.oracle.raw import RawBuild

Array = NDArray[Any]
Golden = dict[str, Any]

VOTES = np.load(Path(__file__).parent / "golden" / "votes.npz")
KVPRESS = np.load(Path(__file__).parent / "golden" / "kvpress.npz")

STAGES = ("softmax", "vote", "pool", "group")
KVPRESS_VOTE = {"softmax": "causal", "vote": "sum", "pool": "avg", "group": "mean"}

POOL_AND_GROUP_COMMUTE = [("avg", "mean"), ("avg", "sum"), ("max", "max")]
"""Means of means and maxima of maxima: whichever comes first, the same."""


def goldens(*families: str) -> list[Any]:
    """Parameters: the published votes of these families."""
    votes = json.loads(VOTES["votes"].item())
    chosen = [vote for vote in votes if vote["family"] in families]
    assert {vote["family"] for vote in chosen} == set(families)
    return [pytest.param(vote, id=vote["name"]) for vote in chosen]


def published(vote: Golden) -> list[list[int]]:
    """The published positions by head, ascending."""
    return np.sort(VOTES[vote["name"]]).tolist()


def select(
    window: Array, key: Array, place: LayerGeometry, kernel: int, options: dict[str, str]
) -> list[list[int]]:
    """SnapKVSelect's positions by KV head: window [H, W, D], key [Hkv, L, D] with pads behind."""
    pads = np.full((len(key), 9, key.shape[2]), 7, np.float32)
    feeds = {
        "query_window": window[None],
        "key": np.concatenate([key, pads], axis=1)[None],
        "prompt_length": np.array([key.shape[1]]),
    }
    sizes = asdict(place) | {"K": [place.K], "pool_kernel": [1, kernel]}
    (kept,) = run("SnapKVSelect", feeds, sizes | {"scale": key.shape[2] ** -0.5}, options)
    found = [[position for position in head if position >= 0] for head in kept[0].tolist()]
    if place.is_whole(key.shape[1]):  # all are held, and none has to be chosen
        assert not any(found)
        return [[*range(place.L_sink, key.shape[1] - place.L_recent)]] * len(found)
    return found


def ours(vote: Golden, L_sink: int = 0, **changes: str) -> list[list[int]]:
    """Our kept positions of the same prompt in as many cache slots, with given options changed."""
    query, key = VOTES["query"], VOTES["key"][:, : vote["length"]]
    query = query[:: len(query) // vote["heads"], : vote["length"]]
    if vote["family"] == "snapkv-per-query-head":
        key = key.repeat(len(query) // len(key), axis=0)
    options = {stage: vote[stage] for stage in STAGES} | changes
    options["group"] = options["group"].replace("none", "mean")
    place = LayerGeometry(L_sink, vote["window"], vote["K"] - L_sink)
    window = query[:, -vote["window"] :].astype(np.float32)
    return select(window, key.astype(np.float32), place, vote["kernel"], options)


@pytest.mark.parametrize(
    "vote", goldens("snapkv", "snapkv-per-query-head", "per-kv-head", "squares", "snapstream")
)
def test_votes_of_equal_definition_keep_the_published_positions(vote: Golden) -> None:
    """MHA is the original SnapKV; so is a KV head repeated for each of its query heads."""
    assert ours(vote) == published(vote)


@pytest.mark.parametrize("vote", goldens("factory-kv-head"))
def test_group_before_pool_equals_ours_exactly_where_they_commute(vote: Golden) -> None:
    """KVCache-Factory's kv_head layout groups first. kvpress, KV-Compress and we pool first."""
    commutes = (vote["pool"], vote["group"]) in POOL_AND_GROUP_COMMUTE
    assert (ours(vote) == published(vote)) == commutes


@pytest.mark.parametrize("vote", goldens("snapstream"))
def test_softmax_over_eligible_positions_differs_from_snapkvs(vote: Golden) -> None:
    """SnapStream's default: a query that looks at its own window still casts a whole vote."""
    assert ours(vote, softmax="causal") != published(vote)


@pytest.mark.parametrize("vote", goldens("snapkv-per-query-head"))
def test_kept_set_is_one_per_kv_head_not_one_per_query_head(vote: Golden) -> None:
    """SnapKV repeats keys before its cache: H sets, which differ. Ours are Hkv: less memory."""
    sets = published(vote)
    mean = ours(vote | {"family": "per-kv-head", "group": "mean"})
    assert len(sets) == 2 * len(mean)
    for head, kept in enumerate(mean):
        first, second = sets[2 * head : 2 * head + 2]
        assert first != second
        assert len({*first, *second}) > len(kept)


@pytest.mark.parametrize("vote", goldens("kv-compress"))
def test_pool_does_not_see_the_windows_own_votes(vote: Golden) -> None:
    """KV-Compress pools the window's own votes too: the last eligible win by their neighbours."""
    end = vote["length"] - vote["window"]
    spilled = range(end - vote["kernel"] // 2, end)
    theirs, kept = published(vote), ours(vote)
    assert theirs != kept
    for head, positions in zip(theirs, kept, strict=True):
        assert set(head) - set(positions) <= set(spilled)


@pytest.mark.parametrize("vote", goldens("snapkv")[:4])
def test_kept_positions_ascend(vote: Golden) -> None:
    """The original keeps the order of the votes; we sort them."""
    assert VOTES[vote["name"]].tolist() != published(vote)
    assert ours(vote) == [sorted(head) for head in ours(vote)]


def test_equal_votes_keep_the_lower_positions() -> None:
    """Neighbours share a highest vote. The original leaves the choice among equals to torch."""
    vote = json.loads(VOTES["tied"].item())
    kept, theirs = ours(vote), np.sort(VOTES["tied.kept"]).tolist()
    assert kept != theirs
    for positions, other, rank in zip(kept, theirs, VOTES["tied.rank"], strict=True):
        above, equal = np.flatnonzero(rank == 1), np.flatnonzero(rank == 0)
        assert set(above) <= set(other) <= {*above, *equal}
        assert positions == sorted([*above, *equal[: vote["K"] - len(above)]])


@pytest.mark.parametrize("vote", goldens("snapkv")[:1])
def test_sinks_are_kept_whatever_the_vote(vote: Golden) -> None:
    """SnapKV protects nothing but its window; sinks are slots of their own, never voted on."""
    sinks = {0, 1, 2, 3}
    assert any(sinks - set(head) for head in published(vote))
    for head in ours(vote, L_sink=4):
        assert len(head) == vote["K"] - 4
        assert not sinks & set(head)


def presses() -> list[Any]:
    found = json.loads(KVPRESS["presses"].item())
    return [
        pytest.param(i, press, id=f"{i}-{press['name']}-{press['length']}")
        for i, press in enumerate(found)
    ]


@pytest.mark.parametrize(("index", "press"), presses())
def test_select_equals_kvpress_on_its_queries_and_keys(index: int, press: Golden) -> None:
    for layer in range(2):
        kept = KVPRESS[f"{index}.kept.{layer}"]
        place = LayerGeometry(0, press["window"], kept.shape[1])
        window, key = KVPRESS[f"{index}.query.{layer}"], KVPRESS[f"{index}.key.{layer}"]
        assert select(window, key, place, press["kernel"], KVPRESS_VOTE) == kept.tolist()


@pytest.mark.parametrize(
    ("index", "press"), [each for each in presses() if each.values[1]["name"] == "snapkv"]
)
def test_build_keeps_the_positions_of_kvpress_on_the_same_checkpoint(
    index: int, press: Golden, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Trace, chunked prefill and compress step together. kvpress' capacity counts the window."""
    base = tmp_path_factory.getbasetemp()
    graphs = built(base, press["window"], press["kernel"], press["capacity"] - press["window"])
    compressed = graphs.compress(graphs.prefill(KVPRESS[f"{index}.ids"].tolist()))
    for layer, kept in enumerate(compressed.topk):
        assert kept.tolist() == KVPRESS[f"{index}.kept.{layer}"].tolist()


@cache
def built(base: Path, window: int, kernel: int, K: int) -> RawBuild:
    """SnapKV itself: a ring as long as the window, no sinks, causal softmax."""
    out = base / f"golden-{window}-{kernel}-{K}.build"
    sizes = {"L_recent": window, "L_obs": window, "K": K, "pool_kernel": kernel}
    build(checkpoint(base), out, L_max=128, policy="snapkv", prefill_chunk=32, **sizes)
    return RawBuild(out)


@cache
def checkpoint(base: Path) -> Path:
    """The tiny Llama that kvpress ran."""
    directory = base / "golden-llama"
    directory.mkdir()
    prefix = "weights."
    names = [name for name in KVPRESS.files if name.startswith(prefix)]
    weights = {name.removeprefix(prefix): KVPRESS[name].astype(np.float32) for name in names}
    save_file(weights, directory / "model.safetensors", {"format": "pt"})
    (directory / "config.json").write_text(KVPRESS["config"].item())
    return directory


PYRAMIDS = json.loads(VOTES["pyramids"].item())
IS_LONG = [row["length"] >= 2 * row["K"] for row in PYRAMIDS]


def our_pyramid(row: Golden) -> list[int]:
    return list(pyramid(row["K"], row["layers"], row["length"] - row["window"]))


@pytest.mark.parametrize("row", [row for row, long in zip(PYRAMIDS, IS_LONG, strict=True) if long])
def test_pyramid_equals_kvcache_factorys_up_to_rounding(row: Golden) -> None:
    """It rounds each step down, and keeps up to 15 % more than K a layer. Ours keeps the budget."""
    theirs, ours = row["factory"], our_pyramid(row)
    assert theirs[0] == ours[0]
    over = np.subtract(theirs, ours)
    assert all(0 <= more <= layer + 0.5 for layer, more in enumerate(over))
    assert sum(ours) == row["K"] * row["layers"] <= sum(theirs)


@pytest.mark.parametrize(
    "row", [row for row, long in zip(PYRAMIDS, IS_LONG, strict=True) if not long]
)
def test_pyramid_does_not_depend_on_the_prompt_length(row: Golden) -> None:
    """KVCache-Factory decides by prompt, and keeps a prompt below 2K evenly. Slots are fixed."""
    assert set(row["factory"]) == {row["K"]}
    assert our_pyramid(row) != row["factory"]
    assert max(our_pyramid(row)) <= row["length"] - row["window"]


@pytest.mark.parametrize("row", PYRAMIDS)
def test_kvpress_pyramid_includes_the_window_in_its_budget(row: Golden) -> None:
    """Its mean is K including the window. Ours is K beside the ring."""
    least = 2 * row["K"] - max(our_pyramid(row))
    if least < row["window"]:  # it keeps the layers alike rather than go below the window
        assert set(row["kvpress"]) == {row["K"]}
    else:
        difference = np.subtract(our_pyramid(row), row["kvpress"])
        assert abs(difference).max() <= 1
    assert round(np.mean(row["kvpress"])) == row["K"] == np.mean(our_pyramid(row))
