"""Multi-token prediction: drafts agree with transformers' own layer for it (DeepSeek-V3)."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from snapexport.exporter.model import ExpertForm
from snapexport.exporter.weights.derived import unstacked_experts
from snapexport.exporter.weights.forms import parts
from snapexport.exporter.weights.forms.parts import dequantize
from tests.oracle import cases, drafts
from tests.oracle.cases import CACHED, LOGITS, Case
from tests.oracle.compare import assert_logits
from tests.oracle.drafts import Drafts
from tests.oracle.raw import prefill_and_compress
from tests.oracle.raw_drafts import DraftSlots, RawDrafts

torch.set_num_threads(1)
pytestmark = pytest.mark.slow

NAME = "deepseek-v3-mtp"
STEPS = 32
RING = 16
CASE = Case(NAME, mtp=True)
LENGTHS = (1, 12, 90)
"""The ring of 16 positions wraps in decode, and was full after the prompt of 90 tokens."""


@cache
def expected(length: int) -> Drafts:
    """A run whose tokens, votes and experts rounding does not change."""
    runs = (
        drafts.drafts(
            cases.checkpoint(NAME), cases.prompt(length, seed), CASE.geometry, STEPS, RING
        )
        for seed in range(100)
    )
    return next(one for one in runs if one.is_clear)


VARIANTS = [
    CASE,
    Case(NAME, mtp=True, target="portable"),
    Case(NAME, mtp=True, prefill_chunk=8),
    Case(NAME, mtp=True, prefill_chunk=96),
    Case(NAME, mtp=True, share_weights=True),
]
"""A chunk of 8 tokens is shorter than the ring; one of 96 is the whole prompt."""


@pytest.mark.parametrize("case", VARIANTS, ids=str)
def test_drafts_agree_with_transformers_before_and_after_the_ring_wraps(case: Case) -> None:
    wants = [expected(length) for length in LENGTHS]
    slots = DraftSlots(cases.built(case), [want.run.prompt for want in wants])
    for step in range(STEPS):
        got = slots.step([want.run.tokens[step] for want in wants])
        for length, want, *rows in zip(LENGTHS, wants, *got, strict=True):
            position, where = length + step, f"{case} L={length} step {step}"
            drafted, following, logits, states = rows
            assert_logits(drafted, want.logits[position - 1], f"{where} draft")
            assert_logits(logits, want.run.decode_logits[step], where)
            error = np.abs(following - want.next_hidden_states[position - 1]).max()
            assert error <= LOGITS, f"{where}: next hidden states differ by {error:.2e}"
            error = np.abs(states - want.hidden_states[position]).max()
            assert error <= LOGITS, f"{where}: hidden states differ by {error:.2e}"


def test_drafts_over_a_full_cache_are_those_of_generate() -> None:
    """transformers' whole loop: the hidden states, tokens and positions that it feeds."""
    length, case = 20, Case(NAME, mtp=True, policy="full")
    tokens, calls = drafts.generated(cases.checkpoint(NAME), cases.prompt(length), STEPS)
    slots = DraftSlots(cases.built(case), [cases.prompt(length)])
    found = {}
    for step, token in enumerate(tokens):
        drafted, *_ = slots.step([token])
        found[length + step] = drafted[0]
    assert len(calls) > STEPS // 2
    for call in calls:
        assert_logits(found[call.position], call.logits, f"position {call.position}")
        assert found[call.position].argmax() == call.token


@pytest.mark.parametrize("case", VARIANTS[2:4], ids=str)
@pytest.mark.parametrize("length", [1, 2, 17, 33, 90])
def test_mtp_prefill_fills_the_ring_as_single_steps_do(case: Case, length: int) -> None:
    made = RawDrafts(cases.built(case))
    prompt = cases.prompt(length)
    chunks = prefill_and_compress(made.build, prompt)[1].hidden_states
    states = {
        start + row: of_chunk[:, row : row + 1]
        for start, of_chunk in chunks.items()
        for row in range(min(made.build.chunk, length - start))
    }
    ring = made.empty(made.step_session, fill=7.0)
    for position in range(1, length):
        rows = np.repeat(states[position - 1], made.build.batch, axis=0)
        ids = [prompt[position]] * made.build.batch
        *_, ring = made.step(ids, [position] * made.build.batch, rows, ring)
    filled = made.prefill(prompt, chunks, stale=7.0)
    for got, want in zip(filled, ring, strict=True):
        assert got.shape == (1, *want.shape[1:])
        assert np.abs(got - want[:1]).max() <= CACHED
        assert (got == 7.0).all(axis=(0, 1, 3)).sum() == max(0, RING - (length - 1))


def test_second_draft_follows_from_the_first_drafts_hidden_states() -> None:
    """A second draft, of the first one and of the layer's own hidden states."""
    want = expected(12)
    slots = DraftSlots(cases.built(CASE), [want.run.prompt])
    for step in range(10):
        drafted, following, *_ = slots.step([want.run.tokens[step]])
    position = 12 + 10
    batch = slots.drafts.build.batch
    states = np.repeat(following[:, None], batch, axis=0)
    token = int(drafted[0].argmax())
    logits, *_ = slots.drafts.step([token] * batch, [position] * batch, states, slots.ring)

    layer = drafts.mtp(cases.checkpoint(NAME))
    tokens = torch.tensor([[*want.run.prompt, *want.run.tokens[:10], token]])
    hidden = np.concatenate([want.hidden_states[: position - 1], following])
    with torch.no_grad():
        row = drafts.one_draft(layer, tokens, torch.tensor(hidden)[None], position, RING)
        assert_logits(logits[0], layer._project_to_logits(row)[0].numpy(), "second draft")


def drafted(want: Drafts, case: Case) -> NDArray[np.float32]:
    """Logits [STEPS,V] of drafts after a prompt of 90 tokens, of the exact hidden states."""
    made = RawDrafts(cases.built(case))
    tokens = [*want.run.prompt, *want.run.tokens]
    states = np.pad(want.hidden_states[:90], ((0, 6), (0, 0)))
    chunks = {start: states[None, start : start + 32] for start in (0, 32, 58)}
    batch = made.build.batch
    ring = [np.repeat(part, batch, axis=0) for part in made.prefill(want.run.prompt, chunks)]
    got = []
    for position in range(90, 90 + STEPS):
        rows = np.repeat(want.hidden_states[None, None, position - 1], batch, axis=0)
        logits, _, ring = made.step([tokens[position]] * batch, [position] * batch, rows, ring)
        got.append(logits[0])
    return np.stack(got)


def noise(got: NDArray[np.float32], want: Drafts) -> float:
    """Standard deviation of the drafts' error, relative to that of the logits."""
    return float((got - want.logits[89:]).std() / want.logits[89:].std())


def test_drafts_of_an_fp16_ring_are_close() -> None:
    want = expected(90)
    assert 0 < noise(drafted(want, replace(CASE, cache_dtype="fp16")), want) < 0.005


def test_drafts_of_4_bit_weights_are_those_of_the_rounded_weights(tmp_path: Path) -> None:
    """transformers, given the weights as they are stored, agrees up to 8-bit activations."""
    case, exact = replace(CASE, weights="int4"), expected(90)
    rounded = with_rounded_layer(cases.checkpoint(NAME), cases.built(case).directory, tmp_path)
    layer = drafts.mtp(rounded)
    tokens = torch.tensor([[*exact.run.prompt, *exact.run.tokens]])
    states = torch.tensor(exact.hidden_states)[None]
    with torch.no_grad():
        rows = [drafts.one_draft(layer, tokens, states, p, RING) for p in range(1, 90 + STEPS)]
        logits = torch.cat([layer._project_to_logits(row) for row in rows]).numpy()
    got = drafted(exact, case)
    near, far = noise(got, replace(exact, logits=logits)), noise(got, exact)
    assert near < 0.4 * far, (near, far)


def with_rounded_layer(checkpoint: Path, made: Path, out: Path) -> Path:
    """The checkpoint, with the weights of the layer and of the head as a build holds them."""
    files = sorted((made / "weights").iterdir())
    stored = {name: one for file in files for name, one in load_file(file).items()}
    rounded = {parts.whole(name) for name in stored if parts.whole(name) != name}
    found = {name: one for name, one in dequantize(stored).items() if name in rounded}
    tensors = load_file(checkpoint / "model.safetensors")
    found |= unstacked_experts(found, ExpertForm())
    for name in tensors:
        source = "model.embed_tokens.weight" if "embed_tokens" in name else name
        if source in found and (".layers.3." in name or ".layers." not in name):
            tensors[name] = found[source][..., : tensors[name].shape[-1]].clone()
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    (out / "config.json").write_bytes((checkpoint / "config.json").read_bytes())
    return out


def specs(entry: dict[str, Any], kind: str) -> dict[str, tuple[str, list[int]]]:
    return {spec["name"]: (spec["dtype"], spec["shape"]) for spec in entry[kind]}


def test_mtp_graphs_have_the_inputs_and_outputs_of_the_contract() -> None:
    graphs = cases.built(CASE).manifest["graphs"]
    B, C, E, V, N = 3, 32, 64, 257, 3
    caches = {"key": 32, "value": 8}

    def ring(prefix: str, rows: int) -> dict[str, tuple[str, list[int]]]:
        return {f"{prefix}.{N}.{p}": ("float32", [rows, 1, RING, D]) for p, D in caches.items()}

    assert specs(graphs["mtp"], "inputs") == {
        "input_ids": ("int64", [B, 1]),
        "position_ids": ("int64", [B, 1]),
        "hidden_states": ("float32", [B, 1, E]),
    } | ring("past_key_values", B)
    assert specs(graphs["mtp"], "outputs") == {
        "logits": ("float32", [B, V]),
        "next_hidden_states": ("float32", [B, 1, E]),
    } | ring("present", B)
    assert specs(graphs["mtp-prefill"], "inputs") == {
        "input_ids": ("int64", [1, C]),
        "past_length": ("int64", [1]),
        "chunk_length": ("int64", [1]),
        "hidden_states": ("float32", [1, C, E]),
    } | ring("past_key_values", 1)
    assert specs(graphs["mtp-prefill"], "outputs") == ring("present", 1)
    assert specs(graphs["prefill"], "outputs")["hidden_states"] == ("float32", [1, C, E])
    assert specs(graphs["decode"], "outputs")["hidden_states"] == ("float32", [B, 1, E])
