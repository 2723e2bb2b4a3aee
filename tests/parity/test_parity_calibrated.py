"""The vote of a mean query: against TriAttention's published scores, of transformers' own states.

Equation 9 and 10 of arXiv:2604.04921, in float64: a key before RoPE, k at position p, is worth the
mean over the distances d = L - 1 + o - p of sum_f |q_f||k_f| cos(w_f d + arg q_f - arg k_f), plus
sum_f (E|q_f| - |q_f|) |k_f|, where q_f is the mean query's pair.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import DynamicCache

from snapexport.contract.build_directory import Build
from snapexport.contract.slots import LayerGeometry
from snapexport.errors import UserError
from snapexport.methods.calibrated.measure import measure_mean_queries
from snapexport.methods.calibrated.queries import MeanQueries
from snapexport.runtime.engine.open_executor import open_executor
from tests.builds import build
from tests.oracle import cases, masked
from tests.oracle.raw import RawBuild
from tests.parity.test_parity_extend import Extended

Array = NDArray[Any]

SIZES: Any = {"L_max": 96, "L_sink": 4, "L_recent": 16, "K": 12, "batch": 1, "pool_kernel": 1}
TEXTS = tuple(cases.prompt(60, seed) for seed in (11, 12, 13))
CHUNK = 32
CLOSE = 1e-4
"""Standard deviations within which two positions may change places."""
LATER, SLOW = ("qwen3", "glm4", "smollm3", "gemma3"), pytest.mark.slow
NAMES = {"llama": False, "qwen3": False, "glm4": True, "smollm3": False, "gemma3": False}
"""Checkpoints, and whether RoPE rotates channels 2i and 2i + 1."""


@contextmanager
def watched(model: Any) -> Iterator[list[Array]]:
    """The queries [H,C,D] that each layer's RoPE is given; those of layers without one are lost."""
    modeling, found = __import__(type(model).__module__, fromlist=["x"]), []
    original = modeling.apply_rotary_pos_emb

    def noted(query: Any, *others: Any, **named: Any) -> Any:
        found.append(query[0].double().numpy())
        return original(query, *others, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(modeling, "apply_rotary_pos_emb", noted)
        yield found


def paired(states: Array, count: int, interleaved: bool) -> Array:
    """RoPE's pairs of states [...,D], complex [...,count]."""
    of = states[..., : 2 * count]
    halves = (of[..., ::2], of[..., 1::2]) if interleaved else (of[..., :count], of[..., count:])
    return halves[0] + 1j * halves[1]


def published(
    keys: Array, mean: Array, magnitude: Array, speeds: Array, interleaved: bool, span: range
) -> Array:
    """Scores [Hkv,n] of the eligible keys after RoPE, [Hkv,L,D], in standard deviations."""
    length, groups = keys.shape[1], mean.shape[0] // keys.shape[0]
    places, count = np.arange(span.start, span.stop), len(speeds)
    rotated = paired(keys[:, span.start : span.stop].astype(np.float64), count, interleaved)
    before = np.repeat(rotated * np.exp(-1j * places[:, None] * speeds), groups, 0)
    query = paired(mean.astype(np.float64), count, interleaved)[:, None]
    sizes, apart = np.abs(query) * np.abs(before), np.angle(query) - np.angle(before)
    scores = ((magnitude[:, None] - np.abs(query)) * np.abs(before)).sum(-1)
    for offset in (1 << n for n in range(17)):
        distance = (length - 1 + offset - places)[:, None]
        scores = scores + (sizes * np.cos(distance * speeds + apart)).sum(-1) / 17
    straight = np.repeat(keys[:, span.start : span.stop, 2 * count :], groups, 0)
    scores = scores + (straight * mean[:, None, 2 * count :]).sum(-1)
    scores = (scores - scores.mean(-1, keepdims=True)) / scores.std(-1, keepdims=True)
    best: Array = scores.reshape(keys.shape[0], groups, -1).max(1)
    return best


def assert_kept(kept: Array, votes: Array, shape: LayerGeometry) -> None:
    """The K best of each head, but for near ties. kept: [Hkv,K]. votes: [Hkv,n]."""
    for row, of in zip(kept - shape.L_sink, votes, strict=True):
        assert len(set(row.tolist())) == shape.K and (np.diff(row) > 0).all()
        assert of[row].min() >= np.sort(of)[-shape.K] - CLOSE


@pytest.fixture(scope="module", params=["llama", *(pytest.param(n, marks=SLOW) for n in LATER)])
def name(request: Any) -> str:
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def made(name: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Callable[..., Build], Any]:
    """What builds with mean queries of TEXTS, and these."""
    folder = tmp_path_factory.mktemp(name)
    plain = build(
        cases.checkpoint(name), folder / "plain", **SIZES, prefill_chunk=CHUNK, baseline=True
    )
    means, file = measure_mean_queries(plain, TEXTS, lambda: None), folder / "queries.json"
    file.write_text(means.text({}))

    def make(**options: Any) -> Build:
        out = folder / f"b{len(list(folder.iterdir()))}"
        choices = {"prefill_chunk": CHUNK, "mean_queries": file} | options
        return build(cases.checkpoint(name), out, **SIZES | choices)

    return make, MeanQueries.read(file)


@torch.no_grad()
def test_mean_queries_are_those_of_transformers(name: str, made: Any) -> None:
    """Of the last chunk of each text, in the layers that RoPE rotates and that vote."""
    model, rows = masked.load(cases.checkpoint(name), "eager"), []
    for text in TEXTS:
        with watched(model) as found:
            model(torch.tensor([text]))
        rows.append([one[:, -CHUNK:] for one in found])
    layers, rotated = made[1].layers, rotated_layers(model)
    assert len(rotated) == len(rows[0]) and set(rotated) & set(layers)
    for place, layer in enumerate(rotated):
        if layer in layers:
            queries, own = np.concatenate([row[place] for row in rows], axis=1), layers[layer]
            np.testing.assert_allclose(own.mean, queries.mean(1), atol=1e-5)
            pairs = paired(queries, own.magnitude.shape[1], NAMES[name])
            np.testing.assert_allclose(own.magnitude, np.abs(pairs).mean(1), atol=1e-5)


def rotated_layers(model: Any) -> list[int]:
    """The layers whose queries RoPE rotates."""
    steps = getattr(model.config, "no_rope_layers", None)
    return [layer for layer in range(model.config.num_hidden_layers) if not steps or steps[layer]]


def speeds_of(model: Any, layer: int, pairs: int) -> Array:
    """RoPE's radians a position, by pair."""
    rotary = model.model.rotary_emb
    types = getattr(model.config, "layer_types", None)
    own = getattr(rotary, f"{types[layer]}_inv_freq", None) if types else None
    speeds: Array = (rotary.inv_freq if own is None else own).double().numpy()[:pairs]
    return speeds


@torch.no_grad()
def votes(name: str, means: MeanQueries, prompt: tuple[int, ...]) -> dict[int, Array]:
    """What each voting layer's eligible positions are worth, by transformers' own keys."""
    model, past = masked.load(cases.checkpoint(name), "eager"), DynamicCache()
    model(torch.tensor([prompt]), past_key_values=past)
    rotated, found = rotated_layers(model), {}
    span = range(SIZES["L_sink"], len(prompt) - SIZES["L_recent"])
    for layer, own in means.layers.items():
        keys = past.layers[layer].keys[0].double().numpy()
        pairs = own.magnitude.shape[1] if layer in rotated else 0
        speeds, magnitude = speeds_of(model, layer, pairs), own.magnitude[:, :pairs]
        found[layer] = published(keys, own.mean, magnitude, speeds, NAMES[name], span)
    return found


@pytest.mark.parametrize(
    "options", [{}, {"target": "portable"}, {"target": "openvino", "prefill_chunk": 16}], ids=str
)
def test_kept_positions_are_those_of_the_published_scores(
    name: str, made: Any, options: dict[str, Any]
) -> None:
    make, means = made
    built = make(**options)
    executor = open_executor(built, threads=1)
    for length in (33, 61, 96):
        prompt = cases.prompt(length)
        executor.prefill_prompt(0, prompt)
        kept, wanted = executor.topk_positions(), votes(name, means, prompt)
        assert kept is not None
        for layer, of in wanted.items():
            assert_kept(kept[layer], of, built.manifest.geometry.layers[layer])


def test_a_chunk_after_a_cache_is_chosen_from_by_the_same_scores(name: str, made: Any) -> None:
    make, means = made
    raw, prompt = RawBuild(make(extend=True).directory), cases.prompt(48)
    extended, geometry = Extended(raw), Build.open(raw.directory).manifest.geometry
    for start in range(0, 48, 16):
        extended.take(prompt[start : start + 16])
    kept = extended.kept(geometry)
    for layer, of in votes(name, means, prompt).items():
        assert_kept(kept[layer], of, geometry.layers[layer])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"vote_queries": "prompt"}, "--mean-queries is not supported with --vote-queries prompt"),
        ({"L_obs": 4}, "--L-obs 4 is not supported with --vote-queries calibrated"),
        ({"softmax": "causal"}, "--softmax causal is not supported with --vote-queries calib"),
        ({"policy": "sage", "K": None}, "--vote-queries calibrated is not supported with --policy"),
        ({"mean_queries": None, "vote_queries": "calibrated"}, "without --mean-queries"),
        ({"prefill_chunk": 96}, "a prefill chunk of L_max"),
    ],
)
def test_what_a_mean_query_has_no_use_for_is_refused(
    made: Any, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(UserError, match=says) as error:
        made[0](**options)
    assert error.value.hint


def fewer_pairs(found: Any) -> None:
    for layer in filter(None, found["layers"]):
        layer["magnitude"] = [row[1:] for row in layer["magnitude"]]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{}", "does not hold mean queries"),
        ("[", "is not valid JSON|no JSON|JSON"),
        (lambda found: found["layers"].pop(), "the model has"),
        (lambda found: found["layers"][-1]["mean"].pop(), r"mean \("),
        (lambda found: found["layers"][-1]["mean"][0].__setitem__(0, "a"), "not a number"),
        (lambda found: found["layers"].__setitem__(-1, None), "has no mean queries"),
        (fewer_pairs, "and RoPE rotates"),
    ],
)
def test_a_file_that_is_not_of_the_model_is_refused(
    made: Any, text: Any, says: str, tmp_path: Path
) -> None:
    found, file = json.loads(made[1].text({})), tmp_path / "queries.json"
    if not isinstance(text, str):
        text(found)
        text = json.dumps(found)
    file.write_text(text)
    with pytest.raises(UserError, match=says):
        made[0](mean_queries=file)
