"""Builds with recurrent states agree with transformers, in every way to cut a prompt."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapexport.contract.manifest import Manifest
from tests.oracle.cases import Case, build_of
from tests.oracle.hybrids import HYBRIDS
from tests.oracle.recurrent import require_agreement, require_turns_agree

pytestmark = pytest.mark.slow

FEW = ("falcon_h1",)
"""Attention and states in one layer. Slow: convolutions, the gated delta rule, and others."""


def slow(value: object) -> Any:
    return pytest.param(value, marks=pytest.mark.slow)


def few(names: Sequence[str]) -> list[Any]:
    return [name if name in FEW else slow(name) for name in names]


@pytest.mark.slow
@pytest.mark.parametrize("name", HYBRIDS)
def test_64_steps_of_compressed_and_full_caches_agree_with_transformers(name: str) -> None:
    require_agreement(Case(name, extend=True), (70, 5, 33), steps=64)
    require_agreement(Case(name, policy="full", L_max=160), (80, 32, 1), steps=64)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [8, 25, 64, pytest.param(96, id="single shot")])
@pytest.mark.parametrize("name", ["falcon_h1", "lfm2.states", "qwen3_5_text"])
def test_every_chunk_agrees_with_transformers(name: str, chunk: int) -> None:
    require_agreement(Case(name, prefill_chunk=chunk), (8, 84, 63))


@pytest.mark.slow
@settings(max_examples=12, deadline=None, database=None)
@given(length=st.integers(1, 84))
def test_every_length_agrees_with_transformers(length: int) -> None:
    require_agreement(Case("falcon_h1", prefill_chunk=25), (length,))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["falcon_h1", "lfm2.states", "qwen3_5_text"])
def test_chunks_of_one_token_agree_with_transformers(name: str) -> None:
    require_agreement(Case(name, policy="full", prefill_chunk=1), (1, 9, 40))


@pytest.mark.parametrize("name", few([*HYBRIDS]))
def test_turns_agree_with_transformers(name: str) -> None:
    case = Case(name, extend=True)
    require_turns_agree(case, (70, 9, 32, 1))  # a prompt in chunks, and a block of a whole chunk
    require_turns_agree(case, (24, 24, 3, 31, 30), (8, 8, 8, 0, 0))


@pytest.mark.slow
def test_portable_target_agrees_with_transformers() -> None:
    case = Case("qwen3_5_text", target="portable", extend=True)
    require_agreement(case, (70, 5, 33))
    require_turns_agree(case, (24, 24, 3, 31, 30), (8, 8, 8, 0, 0))


@pytest.mark.parametrize("chunk", [16, slow(64), pytest.param(96, id="single shot")])
@pytest.mark.parametrize("name", few(["falcon_h1", "lfm2.states", "qwen3_5_text"]))
def test_turns_of_every_chunk_agree_with_transformers(name: str, chunk: int) -> None:
    case = Case(name, extend=True, prefill_chunk=chunk)
    require_turns_agree(case, (40, 8, 8, 1, 9), (0, 8, 0, 0, 0))


@pytest.mark.slow
def test_states_are_in_the_manifest_and_do_not_grow() -> None:
    sizes = {}
    for L_max in (96, 192):
        manifest: Manifest = build_of(Case("qwen3_5_text", L_max=L_max)).manifest
        decode = {spec.name: spec.shape for spec in manifest.graphs["decode"].inputs}
        sizes[L_max] = {n: s for n, s in decode.items() if n.endswith((".conv", ".matrix"))}
    assert sizes[96] == sizes[192]
    assert sizes[96]["past_key_values.0.matrix"] == [3, 4, 16, 8]
    assert sizes[96]["past_key_values.0.conv"] == [3, 96, 3]
    assert "past_key_values.3.key" in decode and "past_key_values.0.key" not in decode
