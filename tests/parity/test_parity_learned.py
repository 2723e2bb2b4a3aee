"""The vote of learned scores: networks applied by NumPy in float64 to transformers' own states."""

import tempfile
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from math import erf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from snapexport.compare.method import Texts
from snapexport.contract.build_directory import Build
from snapexport.contract.slots import LayerGeometry
from snapexport.errors import UserError
from snapexport.methods.head_budgets.groups import HeadBudget
from snapexport.methods.learned.measure import LEAST, PENALTY, learn
from snapexport.methods.learned.scores import LearnedScores, Linear, Network
from snapexport.methods.repeat.measure import attention_of, repeating
from snapexport.runtime.engine.open_executor import open_executor
from tests.builds import build
from tests.oracle import cases, masked
from tests.oracle.raw import RawBuild
from tests.parity.test_parity_extend import Extended

Array = NDArray[Any]

SIZES: Any = {"L_max": 96, "L_sink": 4, "L_recent": 16, "K": 12, "batch": 1}
CHUNK, K = 32, 12
CLOSE = 1e-4
"""Scores within which two positions may change places."""
SLOW = pytest.mark.slow
LATER = "deepseek-v3", "qwen3", "gemma3", "phi3", "gpt2", "cohere2", "gpt-oss", "qwen3-moe"


OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"target": "portable"},
    {"target": "openvino", "prefill_chunk": 16},
    {"prefill_chunk": 96},
    {"target": "portable", "prefill_capacities": [32], "prefill_chunk": 16},
    {"short_chunks": (8,)},
    {"prefill_budget": 48, "prefill_chunk": 16},
    {"cache_dtype": "int8"},
    {"prompt_cache_dtype": "fp16"},
    {"vote_queries": "both"},
    {"vote_queries": "both", "target": "openvino"},
    {"vote_queries": "both", "prefill_chunk": 96},
)


def network(draw: np.random.Generator, width: int, kv_heads: int, inner: int) -> Network:
    """Of one layer, or of two with `inner` numbers in between."""
    sizes = [width, *([inner] if inner else []), kv_heads]
    return tuple(
        Linear(
            (draw.standard_normal((out, given)) / given**0.5).astype(np.float32),
            draw.standard_normal(out).astype(np.float32) - 3,
        )
        for given, out in pairwise(sizes)
    )


@torch.no_grad()
def states_of(name: str, prompt: tuple[int, ...]) -> dict[int, Array]:
    """What each layer's attention is given, [n,E] in float64."""
    model, found = masked.load(cases.checkpoint(name), "eager"), {}

    def note(layer: int) -> Callable[..., None]:
        def hook(module: Any, given: Any, named: Any) -> None:
            states = named.get("hidden_states", given[0] if given else None)
            found[layer] = states[0].double().numpy()

        return hook

    attentions = [one for one in model.modules() if type(one).__name__.endswith("Attention")]
    hooks = [
        one.register_forward_pre_hook(note(layer), with_kwargs=True)
        for layer, one in enumerate(attentions)
    ]
    model(torch.tensor([prompt]))
    for hook in hooks:
        hook.remove()
    return found


def scores(net: Network, states: Array) -> Array:
    """[Hkv,n] in float64."""
    for number, linear in enumerate(net):
        if number:
            states = states * (1 + np.vectorize(erf)(states / 2**0.5)) / 2
        states = states @ linear.weight.T.astype(np.float64) + linear.bias
    return states.T


def assert_best(kept: Array, of: Array, shape: LayerGeometry, given: Array | None = None) -> None:
    """The best of each head, after those `given`. kept: [Hkv,K]. of: [Hkv,n] of eligible ones."""
    for head, row in enumerate(kept - shape.L_sink):
        assert len(set(row.tolist())) == shape.K and (np.diff(row) > 0).all()
        first = set() if given is None else set((given[head] - shape.L_sink).tolist())
        assert first <= set(row.tolist())
        others = np.delete(of[head], sorted(first))
        own = of[head][sorted(set(row.tolist()) - first)]
        assert own.min() >= np.sort(others)[-len(own)] - CLOSE


@cache
def learned(name: str) -> tuple[Path, LearnedScores]:
    """Networks of a checkpoint, of one layer and of two in turn."""
    draw, states = np.random.default_rng(3), states_of(name, cases.prompt(8))
    with torch.no_grad():
        past = masked.load(cases.checkpoint(name), "eager")(torch.tensor([[1]])).past_key_values
    made = LearnedScores(
        {
            layer: network(draw, one.shape[1], past.layers[layer].keys.shape[1], 7 * (layer % 2))
            for layer, one in states.items()
        }
    )
    file = Path(tempfile.mkdtemp(dir=cases.checkpoint(name).parent)) / "scores.safetensors"
    file.write_bytes(made.content())
    return file, made


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Build]:
    def made(name: str, **options: Any) -> Build:
        out = tmp_path / f"b{len(list(tmp_path.iterdir()))}"
        choices = {"prefill_chunk": CHUNK, "scores": learned(name)[0], "vote_queries": "learned"}
        return build(cases.checkpoint(name), out, **SIZES | choices | options)

    return made


def kept_of(built: Build, prompt: tuple[int, ...]) -> list[Array]:
    executor = open_executor(built, threads=1)
    executor.prefill_prompt(0, prompt)
    found = executor.topk_positions()
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "options"),
    [*(("llama", one) for one in OPTIONS), *(pytest.param(one, {}, marks=SLOW) for one in LATER)],
    ids=str,
)
def test_kept_positions_have_the_highest_scores(
    make: Any, name: str, options: dict[str, Any]
) -> None:
    """For `both`, those that the window alone chooses come first."""
    window, is_both = None, options.get("vote_queries") == "both"
    options = options | ({"pool_kernel": 5} if is_both else {})
    built = make(name, **options)
    if is_both:
        plain = {"vote_queries": "prompt", "scores": None, "K": K // 2}
        window = make(name, **options | plain)
    for length in (33, 61, 96):
        prompt = cases.prompt(length)
        kept, states = kept_of(built, prompt), states_of(name, prompt)
        first = kept_of(window, prompt) if window else None
        for layer, shape in built.manifest.geometry.shapes.items():
            if shape.K and not (layer and "prefill_budget" in options):  # it changes later states
                of = scores(learned(name)[1].layers[layer], states[layer])
                eligible = of[:, shape.L_sink : length - shape.L_recent]
                assert_best(kept[layer], eligible, shape, first and first[layer])


def budgets(built: Build, folder: Path) -> Path:
    """A file by which the first head of each layer keeps more than the others."""
    model, file = built.manifest.model, folder / "heads.json"
    row = [30.0, *[10.0] * (max(model.kv_heads) - 1)]
    rows = tuple(() if layer.reach else tuple(row[: layer.kv_heads]) for layer in model.layers)
    file.write_text(HeadBudget(len(row), rows).text({}))
    return file


def test_heads_with_budgets_of_their_own_keep_by_their_own_scores(
    make: Any, tmp_path: Path
) -> None:
    name = "llama"
    file = budgets(make(name), tmp_path)
    for voter in ("learned", "both"):
        built, prompt = make(name, head_budget=file, vote_queries=voter), cases.prompt(96)
        kept, states = kept_of(built, prompt), states_of(name, prompt)
        geometry = built.manifest.geometry
        for own, shape in zip(geometry.slots.caches, geometry.layers, strict=True):
            for head in (own.heads or ()) if shape.K else ():
                row = kept[own.layer][head]
                row = row[row >= 0][None]
                assert row.shape[1] == shape.K and (np.diff(row) > 0).all()
                of = scores(learned(name)[1].layers[own.layer], states[own.layer])[[head]]
                if voter == "learned":
                    assert_best(row, of[:, shape.L_sink : 96 - shape.L_recent], shape)


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_scores_are_learned_of_rounded_weights(make: Any, weights: str) -> None:
    """Products of integers project too: a build learns of them, and keeps by it."""
    built = make("llama", weights=weights, baseline=True)
    found, _ = learn(Texts(built, [cases.prompt(70)]))
    assert [len(network) for network in found.layers.values()] == [1, 1]
    assert [one.shape for one in kept_of(built, cases.prompt(96))] == [(2, K)] * 2


@pytest.mark.parametrize("options", [{}, {"heads": True}, {"vote_queries": "both"}], ids=str)
def test_blocks_are_chosen_from_by_the_scores_that_cached_positions_kept(
    make: Any, options: dict[str, Any], tmp_path: Path
) -> None:
    """In layer 0, whose states are the tokens'. Scores do not change: the best of all are kept."""
    if options.pop("heads", False):
        options = {"head_budget": budgets(make("llama"), tmp_path)}
    built, prompt = make("llama", extend=True, **options), cases.prompt(96)
    extended, geometry = Extended(RawBuild(built.directory)), built.manifest.geometry
    for start in range(0, 96, 16):
        extended.take(prompt[start : start + 16])
    of = scores(learned("llama")[1].layers[0], states_of("llama", prompt)[0])
    kept = extended.kept(geometry)
    for own, shape in zip(geometry.slots.caches, geometry.layers, strict=True):
        if own.layer == 0 and "vote_queries" not in options:
            theirs = of if own.heads is None else of[[*own.heads]]
            assert_best(kept[own.cache], theirs[:, shape.L_sink : 96 - shape.L_recent], shape)
    if "head_budget" not in options:
        assert_cached(extended.row, of)


def assert_cached(row: dict[str, Array], of: Array) -> None:
    """Each cache slot of layer 0 holds the score of its position. of: [Hkv,n]."""
    cached, positions = row["past_key_values.0.votes"], row["slot_positions.0"]
    for head, places in enumerate(positions[0]):
        is_held = places >= 0
        assert is_held.sum() >= 30
        found = cached[0, head, is_held, 0]
        np.testing.assert_allclose(found, of[head][places[is_held]], atol=1e-4)


@pytest.mark.parametrize(
    "options",
    [{}, {"target": "openvino"}, {"tokens_per_step": 3}, {"cache_dtype": "int8"}],
    ids=str,
)
def test_row_has_the_scores_of_its_prompt_and_answer(make: Any, options: dict[str, Any]) -> None:
    built, prompt = make("llama", extend=True, **options), cases.prompt(80)
    executor, shape = open_executor(built, threads=1), built.manifest.geometry.layers[0]
    executor.prefill_prompt(0, prompt)
    beside = executor.taker("chunk").slot_positions(80)

    def row() -> dict[str, Array]:
        return {one.name: one.host for one in executor.rows.copy_out(0, beside).buffers}

    net, more = learned("llama")[1].layers[0], cases.prompt(12, seed=5)
    assert_cached(row(), scores(net, states_of("llama", prompt)[0]))
    if "tokens_per_step" not in options:  # whose rows are handed over before they decode
        for step, token in enumerate(more):
            executor.decode(np.array([token]), np.array([80 + step]), np.array([80]))
        places = np.arange(80, 92)
        slots = shape.L_sink + (places - shape.L_sink) % shape.ring_slots
        of = scores(net, states_of("llama", (*prompt, *more))[0])
        found = row()["past_key_values.0.votes"][0, :, slots, 0]
        np.testing.assert_allclose(found, of[:, places].T, atol=1e-4)


def test_scores_are_the_ridge_regression_of_what_a_repetition_attends_to(
    make: Any,
) -> None:
    """States as transformers has them, solved in float64; positions after the sinks."""
    name = "llama"
    built = make(name, baseline=True)
    texts = Texts(built, [cases.prompt(length, length) for length in (70, 64)])
    found, correlation = learn(texts)
    assert correlation is not None and -1 <= correlation <= 1 and len(texts.attention) == 2
    with repeating(texts) as made:
        again = list(attention_of(made, Texts(built, texts.prompts)))
    states = [states_of(name, prompt) for prompt in texts.prompts]
    for layer, (linear,) in found.layers.items():
        rows = np.concatenate([one[layer][SIZES["L_sink"] :] for one in states])
        rows = np.concatenate([rows, np.ones((len(rows), 1))], 1)
        wanted = np.concatenate([one[layer][:, SIZES["L_sink"] :].T for one in again])
        wanted = np.log(np.maximum(wanted.astype(np.float64), LEAST))
        inner = rows.T @ rows + PENALTY * np.eye(rows.shape[1])
        solved = np.linalg.solve(inner, rows.T @ wanted)
        np.testing.assert_allclose(linear.weight, solved[:-1].T, atol=1e-4)
        np.testing.assert_allclose(linear.bias, solved[-1], atol=1e-3)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"vote_queries": "prompt"}, "--scores is not supported with --vote-queries prompt"),
        ({"L_obs": 4}, "--L-obs 4 is not supported with --vote-queries learned"),
        ({"softmax": "causal"}, "--softmax causal is not supported with --vote-queries learned"),
        ({"policy": "sage", "K": None}, "--vote-queries learned is not supported with --policy"),
        ({"scores": None}, "without --scores"),
        ({"scores": Path("absent")}, "there is no file absent"),
    ],
)
def test_what_learned_scores_have_no_use_for_is_refused(
    make: Any, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(UserError, match=says) as error:
        make("llama", **options)
    assert error.value.hint
