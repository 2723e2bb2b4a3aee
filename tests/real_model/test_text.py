"""Text of a real tokenizer, piece by piece: whole characters, and nothing lost between two."""

from typing import Any

import pytest
from tokenizers import Tokenizer

from snapexport import LLM, SamplingParams
from snapexport.contract.build_directory import Build
from snapexport.runtime.requests.prompts import load_tokenizer
from snapexport.runtime.requests.text import TextStream

REPLACEMENT = "\ufffd"
TEXTS = {
    "Latin": "Où est-ce que « l’été » naît ? Straße, İstanbul, smørrebrød, 12 345,67 €\n\tfi ﬁ",
    "Cyrillic": "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "CJK": "春眠不覺曉,處處聞啼鳥。 こんにちは、世界! 안녕하세요 𠮷野家",
    "Arabic": "السلام عليكم ورحمة الله، كيف حالك؟ ١٢٣",
    "Devanagari": "क्षत्रिय ज्ञान श्री नमस्ते",
    "emoji": "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇺🇦 ❤️‍🔥 1️⃣ e\u0301\u0323",
    "code": "def f(x):\n    return x  # 2 ** 10\n\n\n\t\tpass\r\n",
}


@pytest.fixture(scope="module")
def llm(build: Build) -> LLM:
    return LLM(build.directory)


@pytest.fixture(scope="module")
def fast(build: Build) -> Tokenizer:
    found = load_tokenizer(build.directory)
    assert found is not None
    return found


def deltas(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    stream = TextStream(tokenizer, [])
    return [*map(stream.push, ids), stream.finish()]


@pytest.mark.parametrize("script", TEXTS)
def test_text_comes_back_from_its_tokens(fast: Tokenizer, tokenizer: Any, script: str) -> None:
    text = TEXTS[script]
    ids = fast.encode(text).ids
    assert ids == tokenizer(text)["input_ids"]
    parts = deltas(fast, ids)
    assert "".join(parts) == text
    assert not any(REPLACEMENT in part for part in parts)


@pytest.mark.parametrize("script", ["CJK", "Arabic", "emoji"])
def test_characters_of_several_tokens_wait_for_their_last(fast: Tokenizer, script: str) -> None:
    """Some tokens hold less than a character: without these the tests above would show nothing."""
    ids = fast.encode(TEXTS[script]).ids
    alone = [fast.decode([token]) for token in ids]
    assert any(REPLACEMENT in one for one in alone)
    assert "".join(alone) != TEXTS[script]


@pytest.mark.parametrize("script", TEXTS)
def test_text_cut_within_a_character_ends_with_one_replacement(
    fast: Tokenizer, script: str
) -> None:
    ids = fast.encode(TEXTS[script]).ids
    for end in range(1, len(ids)):
        parts = deltas(fast, ids[:end])
        assert "".join(parts) == fast.decode(ids[:end])
        assert not any(REPLACEMENT in part for part in parts[:-1])


@pytest.mark.parametrize("seed", range(3))
def test_streamed_deltas_join_to_the_decoding_of_all_tokens(
    llm: LLM, fast: Tokenizer, seed: int
) -> None:
    """Very hot sampling of a text of emoji and Chinese draws broken characters too."""
    params = SamplingParams(temperature=1.5, max_tokens=40, seed=seed, ignore_eos=True)
    prompt = TEXTS["emoji"] + TEXTS["CJK"]
    parts = list(llm.stream(prompt, params))
    tokens = [token for part in parts for token in part.token_ids]
    whole = fast.decode(tokens)
    assert len(tokens) == 40
    assert "".join(part.text for part in parts) == whole
    if REPLACEMENT not in whole:
        assert not any(REPLACEMENT in part.text for part in parts)
