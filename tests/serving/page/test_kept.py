"""What an answer says of its caches: shares of positions, as parts of the prompt's text."""

import json
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from snapexport.contract.build_directory import Build
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.request import SamplingParams
from snapexport.serving.page.kept import PromptText
from tests.builds import build
from tests.runtime.tokenizers_for_tests import byte_level
from tests.serving.openai.conftest import Served

ONE = SamplingParams(max_tokens=2, ignore_eos=True)


def parts(text: str, offsets: list[tuple[int, int]], *shares: float) -> list[tuple[str, int]]:
    return PromptText(text, np.array(offsets, np.int64).reshape(-1, 2)).parts(np.float32(shares))


@pytest.mark.parametrize(
    ("text", "offsets", "shares", "expected"),
    [
        ("abcd", [(0, 1), (1, 2), (2, 4)], (1, 1, 0.25), [("ab", 100), ("cd", 25)]),
        ("a b", [(0, 1), (2, 3)], (1, 0.5), [("a ", 100), ("b", 50)]),  # no token has the space
        ("ab", [(0, 0), (0, 1), (1, 2)], (1, 0, 0), [("ab", 0)]),  # a BOS
        ("😀b", [(0, 1), (0, 1), (1, 2)], (0, 0.5, 0.5), [("😀b", 50)]),  # two tokens, one emoji
        (" a", [(1, 2)], (0.5,), [(" ", 0), ("a", 50)]),
        ("", [(0, 0)], (1,), []),
        ("ab", [], (), [("ab", 0)]),
    ],
)
def test_parts_join_to_the_prompt(
    text: str, offsets: list[tuple[int, int]], shares: tuple[float, ...], expected: object
) -> None:
    assert parts(text, offsets, *shares) == expected


def test_parts_of_a_tokenizer_cover_every_character() -> None:
    text = "é😀 the vault\n\topens"
    shown = PromptText.of(text, byte_level())
    shares = np.random.default_rng(1).random(len(shown.offsets), np.float32)
    assert "".join(part for part, _ in shown.parts(shares)) == text


def held(llm: LLM, prompt: list[int]) -> Any:
    deltas = list(llm.stream(replace(llm.read(prompt, ONE), shows_held=True)))
    assert [delta.held is None for delta in deltas] == [False, True]
    assert all(delta.held is None for delta in llm.stream(llm.read(prompt, ONE)))
    return deltas[0].held


def test_shares_count_the_heads_that_hold_a_position(tiny_build: Build) -> None:
    """Sinks and the ring are held by all, others as the vote kept them."""
    llm, prompt = LLM(tiny_build.directory), [*range(3, 53)]
    found = held(llm, prompt)
    geometry = tiny_build.manifest.geometry.layers[0]
    votes = np.concatenate(llm.executor.topk_positions() or [])
    expected = np.zeros(50)
    for row in votes:
        expected[row] += 1 / len(votes)
    expected[: geometry.L_sink] = expected[50 - geometry.L_recent :] = 1
    assert np.allclose(found, expected)
    assert np.isclose(found.sum(), geometry.size)
    assert held(llm, prompt[: geometry.size]).min() == 1
    assert held(LLM(tiny_build.directory, baseline=True), prompt).min() == 1


def test_shares_after_blocks_are_of_what_the_row_holds(checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "extending.build"
    build(checkpoint, out, L_max=64, L_recent=12, K=8, L_obs=4, prefill_chunk=24, extend=True)
    llm = LLM(out, parked_rows=1)
    size = llm.executor._manifest.geometry.layers[0].size
    first, longer = [*range(3, 53)], [*range(3, 83)]
    assert np.isclose(held(llm, first).sum(), size)
    resumed = held(llm, longer)
    assert len(resumed) == 80 and np.isclose(resumed.sum(), size)
    assert resumed[-12:].min() == 1 == resumed[:4].min()


def post(served: Served, **fields: Any) -> list[dict[str, Any]]:
    """The answer's objects: of a stream its chunks."""
    body = {"model": "model", "max_tokens": 3, "temperature": 0} | fields
    connection = HTTPConnection(served.url.removeprefix("http://"))
    sent = {"Content-Type": "application/json"}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), sent)
    text = connection.getresponse().read().decode()
    lines = [
        line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {")
    ]
    return [json.loads(line) for line in lines or [text]]


CHAT = [{"role": "user", "content": "é😀 <b>"}]


@pytest.mark.parametrize("stream", [False, True])
def test_answers_say_what_was_kept_once_if_they_are_asked(served: Served, stream: bool) -> None:
    found = [
        one["kept"]
        for one in post(served, messages=CHAT, stream=stream, kept=True, n=2)
        if "kept" in one
    ]
    assert found == [[["</s>[user]é😀 <b>[assistant]", 100]]]
    assert not any("kept" in one for one in post(served, messages=CHAT, stream=stream))


def test_only_chats_say_what_was_kept(served: Served) -> None:
    (error,) = post(served, messages=CHAT, kept="yes")
    assert error["error"]["param"] == "kept"
