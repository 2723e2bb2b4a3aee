"""The vote of learned scores: networks applied by NumPy in float64 to transformers' own states."""

from collections.abc import Callable
from math import erf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from snapexport.contract.build_directory import Build
from snapexport.contract.slots import LayerGeometry
from snapexport.methods.learned.scores import LearnedScores, Linear, Network
from snapexport.runtime.engine.open_executor import open_executor
from tests.builds import build
from tests.oracle import cases, masked

Array = NDArray[Any]

SIZES: Any = {"L_max": 96, "L_sink": 4, "L_recent": 16, "K": 12, "batch": 1}
CHUNK, K = 32, 12
CLOSE = 1e-4
"""Scores within which two positions may change places."""
SLOW = pytest.mark.slow
LATER = "qwen3", "gemma3", "phi3", "gpt2", "cohere2", "gpt-oss", "qwen3-moe"


@pytest.fixture(scope="module", params=["llama", *(pytest.param(n, marks=SLOW) for n in LATER)])
def name(request: Any) -> str:
    found: str = request.param
    return found


def network(draw: np.random.Generator, width: int, kv_heads: int, inner: int) -> Network:
    """Of one layer, or of two with `inner` numbers in between."""
    sizes = [width, *([inner] if inner else []), kv_heads]
    return tuple(
        Linear(
            (draw.standard_normal((out, given)) / given**0.5).astype(np.float32),
            draw.standard_normal(out).astype(np.float32) - 3,
        )
        for given, out in zip(sizes, sizes[1:], strict=False)
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


@pytest.fixture(scope="module")
def learned(name: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LearnedScores]:
    """Networks of a checkpoint, of one layer and of two in turn."""
    draw, width = np.random.default_rng(3), states_of(name, cases.prompt(8))
    config = masked.load(cases.checkpoint(name), "eager").config.get_text_config()
    kv_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    made = LearnedScores(
        {
            layer: network(draw, states.shape[1], kv_heads, 7 * (layer % 2))
            for layer, states in width.items()
        }
    )
    file = tmp_path_factory.mktemp("scores") / "scores.safetensors"
    file.write_bytes(made.content())
    return file, made


@pytest.fixture(scope="module")
def make(
    name: str, learned: tuple[Path, LearnedScores], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Build]:
    folder = tmp_path_factory.mktemp("learned")

    def made(**options: Any) -> Build:
        out = folder / f"b{len(list(folder.iterdir()))}"
        choices = {"prefill_chunk": CHUNK, "scores": learned[0], "vote_queries": "learned"}
        return build(cases.checkpoint(name), out, **SIZES | choices | options)

    return made


def kept_of(built: Build, prompt: tuple[int, ...]) -> list[Array]:
    executor = open_executor(built, threads=1)
    executor.prefill_prompt(0, prompt)
    found = executor.topk_positions()
    assert found is not None
    return found


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"target": "portable"},
        {"target": "openvino", "prefill_chunk": 16},
        {"prefill_chunk": 96},
        {"target": "portable", "prefill_capacities": [32, 64]},
        {"short_chunks": (8,)},
        {"prefill_budget": 32, "L_max": 96, "prefill_chunk": 16},
        {"vote_queries": "both"},
        {"vote_queries": "both", "target": "openvino"},
        {"vote_queries": "both", "prefill_chunk": 96},
    ],
    ids=str,
)
def test_kept_positions_have_the_highest_scores(
    name: str, make: Any, learned: Any, options: dict[str, Any]
) -> None:
    """For `both`, those that the window alone chooses come first."""
    window, is_both = None, options.get("vote_queries") == "both"
    options = options | ({"pool_kernel": 5} if is_both else {})
    built = make(**options)
    if is_both:
        plain = {"vote_queries": "prompt", "scores": None, "K": K // 2}
        window = make(**options | plain)
    for length in (33, 61, 96):
        prompt = cases.prompt(length)
        kept, states = kept_of(built, prompt), states_of(name, prompt)
        first = kept_of(window, prompt) if window else None
        for layer, shape in built.manifest.geometry.shapes.items():
            if shape.K:
                of = scores(learned[1].layers[layer], states[layer])
                eligible = of[:, shape.L_sink : length - shape.L_recent]
                assert_best(kept[layer], eligible, shape, first and first[layer])
