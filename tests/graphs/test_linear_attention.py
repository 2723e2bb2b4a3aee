"""Linear attention with a state, on every target, against its recurrence in float64."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.bamba.modeling_bamba import mamba2_chunk_scan
from transformers.models.kimi_linear.modeling_kimi_linear import chunk_kimi_delta_attention
from transformers.models.qwen3_next.modeling_qwen3_next import (
    torch_chunk_gated_delta_rule,
    torch_recurrent_gated_delta_rule,
)

from snapexport.contract.targets import Target
from tests.graphs import bodies
from tests.graphs.bodies import exported
from tests.graphs.linear import SCALE, Array, Sizes, graph_of, recurrence, run_in_place

TARGETS: tuple[Target, ...] = ("onnxruntime", "portable", "openvino", "tensorrt", "tensorrt-rtx")
FORMS: tuple[Target, ...] = ("onnxruntime", "portable")
"""The others have the second form."""
KINDS = {
    "gated delta": Sizes(),
    "KDA": Sizes(groups=4, by_channel=True),
    "SSD": Sizes(groups=1, beta=False),
    "SSD, by channel": Sizes(groups=1, beta=False, by_channel=True),
}


def given_by(target: Target, inputs: dict[str, Array]) -> dict[str, Array]:
    return bodies.run(exported(graph_of(inputs, target)), inputs)


def compare(got: dict[str, Array], want: dict[str, Array]) -> None:
    for name, one in want.items():
        atol = 1e-5 * np.abs(one).max()
        np.testing.assert_allclose(got[name], one, rtol=0, atol=atol, err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens", [1, 70])
@pytest.mark.parametrize("target", TARGETS)
def test_a_chunk_and_a_step_equal_the_recurrence(target: Target, tokens: int, kind: str) -> None:
    inputs = replace(KINDS[kind], batch=2, tokens=tokens).random(0)
    compare(given_by(target, inputs), recurrence(inputs))


@settings(max_examples=25, deadline=None)
@given(
    kind=st.sampled_from(list(KINDS)),
    tokens=st.one_of(st.integers(1, 9), st.sampled_from([63, 64, 65, 127, 128, 129, 193])),
    padding=st.integers(0, 70),
    decay=st.sampled_from([0.0, 1e-3, 1.0, 60.0, 1e4]),
    target=st.sampled_from(FORMS),
    seed=st.integers(0, 99),
)
def test_padded_tokens_do_not_change_the_state(
    kind: str, tokens: int, padding: int, decay: float, target: Target, seed: int
) -> None:
    valid = max(tokens - padding, 0)
    inputs = replace(KINDS[kind], tokens=tokens).random(seed, decay)
    for name in {"key", "decay", "beta"} & set(inputs):
        inputs[name][:, valid:] = 0
    got = given_by(target, inputs)
    assert np.isfinite(got["output"]).all()
    got["output"] = got["output"][:, :valid]
    if valid:
        real = {n: one if n == "past_state" else one[:, :valid] for n, one in inputs.items()}
        compare(got, recurrence(real))
    else:
        np.testing.assert_array_equal(got["present_state"], inputs["past_state"])


@pytest.mark.parametrize("beta", [1.0, 2.0])
@pytest.mark.parametrize("signs", [(1, 1), (1, -1)], ids=["equal", "opposite"])
@pytest.mark.parametrize("kind", ["gated delta", "KDA"])
@pytest.mark.parametrize("target", FORMS)
def test_keys_on_one_line_without_decay_lose_no_digits(
    target: Target, kind: str, signs: tuple[int, int], beta: float
) -> None:
    """A series in powers of the keys' products would be wrong by 1e9 of these."""
    inputs = replace(KINDS[kind], tokens=128).random(0)
    inputs["key"] = inputs["key"][:, :1] * np.resize(signs, 128)[None, :, None, None]
    inputs["key"] = inputs["key"].astype(np.float32)
    inputs |= {"decay": np.zeros_like(inputs["decay"]), "beta": np.full_like(inputs["beta"], beta)}
    compare(given_by(target, inputs), recurrence(inputs))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("target", FORMS)
def test_weak_decays_after_strong_ones_lose_no_digits(target: Target, kind: str) -> None:
    """Differences of their sums would."""
    inputs = replace(KINDS[kind], tokens=128).random(0, decay=1e-2)
    inputs["decay"][:, ::5] = -1e4
    inputs["decay"][:, 64] = -1e30
    compare(given_by(target, inputs), recurrence(inputs))


@pytest.mark.parametrize("tokens", [1, 70])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("target", FORMS)
def test_a_state_may_be_updated_in_its_buffer(target: Target, kind: str, tokens: int) -> None:
    inputs = replace(KINDS[kind], tokens=tokens).random(0)
    compare(run_in_place(graph_of(inputs, target), inputs, "past_state"), recurrence(inputs))


def tensors(inputs: dict[str, Array]) -> dict[str, torch.Tensor]:
    found = {name: torch.from_numpy(one.copy()) for name, one in inputs.items()}
    width = found["query"].shape[-1]
    return found | {"query": found["query"] * SCALE * width**0.5}


@pytest.mark.parametrize("kind", ["gated delta", "KDA"])
@pytest.mark.parametrize("tokens", [1, 70])
@pytest.mark.parametrize("target", FORMS)
def test_delta_rules_equal_those_of_transformers(target: Target, tokens: int, kind: str) -> None:
    inputs = replace(KINDS[kind], tokens=tokens).random(0)
    query, key, value, decay, beta, past = tensors(inputs).values()
    rule = torch_recurrent_gated_delta_rule if tokens == 1 else torch_chunk_gated_delta_rule
    rule = chunk_kimi_delta_attention if kind == "KDA" else rule
    wants = rule(query, key, value, decay, beta, initial_state=past, output_final_state=True)
    named = zip(("output", "present_state"), wants, strict=True)
    compare(given_by(target, inputs), {name: one.numpy() for name, one in named})


@pytest.mark.parametrize("tokens", [1, 70])
@pytest.mark.parametrize("target", FORMS)
def test_the_scan_equals_mamba_2_of_transformers(target: Target, tokens: int) -> None:
    """Its values are x dt, its decays A dt, and its states transposed."""
    sizes = Sizes(tokens=tokens, groups=2, beta=False)
    inputs = sizes.random(0)
    rng = np.random.default_rng(1)
    dt, rate = rng.uniform(0, 2, (1, tokens, 4)), -rng.uniform(0, 3, 4)
    x = rng.standard_normal(inputs["value"].shape, np.float32)
    inputs |= {"value": x * dt[..., None], "decay": rate * dt}
    inputs = {name: one.astype(np.float32) for name, one in inputs.items()}
    output, state = mamba2_chunk_scan(
        torch.from_numpy(x),
        torch.from_numpy(dt.astype(np.float32)),
        torch.from_numpy(rate.astype(np.float32)),
        torch.from_numpy(inputs["key"]),
        torch.from_numpy(inputs["query"] * SCALE),
        chunk_size=32,
        initial_states=torch.from_numpy(inputs["past_state"]).transpose(2, 3),
        return_final_states=True,
    )
    want = {"output": output.numpy(), "present_state": state.transpose(2, 3).numpy()}
    compare(given_by(target, inputs), want)
