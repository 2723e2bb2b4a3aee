"""A prompt taken in turns through extend.onnx agrees with transformers' masked full cache."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from tests.oracle import cases, turns
from tests.oracle.cases import Case
from tests.oracle.checkpoints import VOCABULARY
from tests.oracle.compare import assert_logits, prefill_and_compress
from tests.oracle.raw import Array, Compressed, RawBuild, Slots, padded, past, present
from tests.oracle.raw import run as run_graph

torch.set_num_threads(1)

STEPS = 24
LENGTHS = [
    (40, 32, 9, 1, 3, 30, 20),
    (1, 2, 32, 32, 32),
    (19, 1, 1, 32),
    (96, 32, 5),
]
"""Turns of 1 token, shorter than the window, of a whole chunk; after prompts below the sinks, at
the ring's end, and of L_max. The first is prefilled where it is longer than a chunk."""
TWENTY = (30, 7, 12, 3, 9, 16, 5, 8, 11, 2, 6, 13, 4, 10, 1, 9, 7, 5, 12, 8)


class Extended:
    """One request's row, by the contract alone: caches and the position in each cache slot."""

    def __init__(self, build: RawBuild) -> None:
        self.build = build
        self.session = build.session("extend")
        self.row: dict[str, Array] = {}
        for value in self.session.get_inputs():
            if value.name.startswith(("past_key_values.", "slot_positions.")):
                kind = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
                kind |= {"tensor(int64)": np.int64, "tensor(int8)": np.int8}
                fill = -1 if value.name.startswith("slot_positions.") else 0
                self.row[value.name] = np.full(value.shape, fill, kind[value.type])
        self.length = 0

    def start(self, request: Compressed, geometry: Any) -> None:
        """From a prompt that prefill took."""
        self.length = request.length
        self.row |= past(request.cache)
        for layer, shape in enumerate(geometry.layers):
            rows = request.topk[layer].tolist()
            heads = [shape.source_positions(self.length, row) for row in rows]
            self.row[f"slot_positions.{layer}"] = np.array([heads])

    def take(self, ids: Sequence[int], voters: Sequence[int] = ()) -> Array:
        """One turn -> logits [V]. voters: tokens that vote after it."""
        chunk, count = self.build.chunk, len(ids) + len(voters)
        positions = self.length + np.arange(chunk)[None]
        positions[0, len(ids) : count] = -1
        feeds = {
            "input_ids": padded([*ids, *voters], chunk, 0),
            "position_ids": positions,
            "chunk_length": np.array([count]),
        }
        out = run_graph(self.session, feeds | self.row)
        self.length += len(ids)
        for name, value in out.items():
            if name.startswith("present."):
                self.row[name.replace("present.", "past_key_values.", 1)] = value
            elif name.startswith("present_slot_positions."):
                self.row[name.removeprefix("present_")] = value
        return out["logits"][0]

    def kept(self, geometry: Any) -> list[Array]:
        """[Hkv,K] of each layer; also checks the positions of sinks and ring."""
        kept = []
        for layer, shape in enumerate(geometry.layers):
            positions = self.row[f"slot_positions.{layer}"][0]
            voted = positions[:, shape.cache_slots - shape.K :]
            for head, row in zip(positions.tolist(), voted.tolist(), strict=True):
                assert head == shape.source_positions(self.length, row)
            kept.append(np.full_like(voted, -1) if shape.is_whole(self.length) else voted)
        return kept


def assert_extends(case: Case, lengths: tuple[int, ...], voters: tuple[int, ...] = ()) -> None:
    """voters: how many of the last tokens vote after each turn."""
    build, geometry = cases.built(case), case.geometry
    checkpoint = cases.checkpoint(case.checkpoint)
    ids, want = turns.first_clear(checkpoint, lengths, geometry, STEPS, VOCABULARY, voters)
    extended, where = Extended(build), f"{case} {lengths}"
    for turn, tokens in enumerate(ids):
        if turn == 0 and (len(tokens) > build.chunk or build.single_shot):
            logits, request = prefill_and_compress(build, tokens)
            extended.start(request, geometry)
        else:
            voting = tokens[:0] if not voters else ids[-1][len(ids[-1]) - voters[turn] :]
            logits = extended.take(tokens, voting)
        assert_logits(logits, want.logits[turn], f"{where} turn {turn}")
        for layer, kept in enumerate(extended.kept(geometry)):
            assert np.array_equal(kept, want.kept[turn][layer]), f"{where} {turn} {layer}"
    row = present(
        {n.replace("past_key_values", "present"): v for n, v in extended.row.items()}, build.caches
    )
    slots = Slots(build, [Compressed(extended.length, row, [])])
    for step in range(STEPS):
        (got,) = slots.step(want.tokens[step : step + 1])
        assert_logits(got, want.logits[len(ids) + step], f"{where} step {step}")


SLOW = "gemma3 gemma4_text.shared llama4_text mimo_v2_flash gpt-oss deepseek-v2-groups"
SLOW += " qwen3-moe deepseek-v3"
FAMILIES = (
    *("llama", "qwen3-sliding", "gemma2"),
    *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW.split()),
)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("name", FAMILIES)
def test_turns_agree_with_transformers(name: str, lengths: tuple[int, ...]) -> None:
    assert_extends(Case(name, extend=True), lengths)


def test_twenty_turns_agree_with_transformers() -> None:
    assert_extends(Case(extend=True), TWENTY)


@pytest.mark.parametrize("name", FAMILIES)
def test_prompts_last_tokens_vote_after_each_block(name: str) -> None:
    assert_extends(Case(name, extend=True), (24, 24, 3, 31, 30), (8, 1, 8, 0, 0))


VARIANTS: list[dict[str, Any]] = [
    {"target": "portable"},
    {"target": "portable", "checkpoint": "gpt-oss"},
    {"target": "portable", "checkpoint": "deepseek-v3"},
    {"prefill_chunk": 96},
    {"prefill_chunk": 16},
    {"policy": "streaming"},
    {"vote": "sum-squares", "pool": "max"},
    {"softmax": "causal", "group": "max"},
    {"budget": "pyramid"},
    {"share_weights": True},
    {"decode_attention": "valid"},
    {"L_sink": 0},
]


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_turns_agree_with_transformers_under_every_option(options: dict[str, Any]) -> None:
    case = Case(**{"extend": True} | options)
    assert_extends(case, (14, 16, 16, 9, 3, 16))
    assert_extends(case, (8, 8, 8, 8, 16), (0, 8, 8, 8, 0))


@pytest.mark.parametrize(("cache_dtype", "share"), [("fp16", 0.01), ("int8", 0.2)])
def test_turns_onto_fp16_and_int8_caches_stay_near_transformers(
    cache_dtype: str, share: float
) -> None:
    """share: of the logits' deviation. Rows of 32 tokens and more: short ones calibrate badly."""
    lengths = (32, 32, 32, 20, 32)
    case = Case(extend=True, cache_dtype=cache_dtype, policy="streaming")
    ids, want = turns.first_clear(
        cases.checkpoint("llama"), lengths, case.geometry, STEPS, VOCABULARY
    )
    extended = Extended(cases.built(case))
    for turn, tokens in enumerate(ids):
        expected = want.logits[turn]
        error = np.abs(extended.take(tokens) - expected).max() / expected.std()
        assert error < share, f"turn {turn}: {error:.3f}"
        extended.kept(case.geometry)


def test_int8_cache_keeps_its_scale_over_turns() -> None:
    extended = Extended(cases.built(Case(extend=True, cache_dtype="int8")))
    extended.take(cases.prompt(32))
    before = {name: one.copy() for name, one in extended.row.items()}
    extended.take(cases.prompt(9))
    for layer in range(extended.build.layers):
        scale = f"past_key_values.{layer}.key_scale"
        assert before[scale].any() and np.array_equal(extended.row[scale], before[scale])
        sinks = f"past_key_values.{layer}.key"
        assert np.array_equal(extended.row[sinks][:, :, :4], before[sinks][:, :, :4])
