"""onnxruntime-genai gives the tokens that our runtime gives, and refuses what would be wrong."""

from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from snapexport import LLM, SamplingParams
from snapexport.contract.build_directory import Build
from snapexport.genai.folder import GenaiOptions, write_folder
from snapexport.genai.graph import REFUSAL
from snapexport.genai.tokens import TEXTS
from snapexport.vault import make_prompt
from tests.genai.caller import Caller
from tests.genai.conftest import SLOTS
from tests.genai.process import Genai, GenaiError
from tests.oracle import cases
from tests.oracle.cases import Case

Open = Callable[[Path], Genai]
ANSWER = 5
EOS = 1


@pytest.fixture(scope="module")
def ours(vault_build: Build) -> LLM:
    return LLM(vault_build.directory, prefill="blocks")


def prompt(vault: Path, seed: int, tokens: int) -> list[int]:
    tokenizer = Tokenizer.from_file(str(vault / "tokenizer.json"))
    ids: list[int] = tokenizer.encode(make_prompt(seed, tokens).text).ids
    return ids


def likeliest(llm: LLM, tokens: Sequence[int], count: int) -> list[int]:
    """Our runtime's tokens, without an end: genai's sequence has none."""
    (output,) = llm.generate([[*tokens]], SamplingParams(max_tokens=count, temperature=0))
    return [token for token in output.token_ids if token != EOS]


def random_tokens(count: int) -> list[int]:
    found: list[int] = np.random.default_rng(count).integers(5, 2000, count).tolist()
    return found


def test_answers_equal_ours(genai: Open, vault: Path, ours: LLM) -> None:
    """Of 17 prompts: 8 of many blocks, and those of each length around the cache slots."""
    opened = genai(vault)
    for seed, length in enumerate([2048] * 8 + [*range(SLOTS - 6, SLOTS + 3)]):
        tokens = prompt(vault, seed, length)
        assert opened.answer(tokens, ANSWER) == likeliest(ours, tokens, ANSWER), length


def test_end_of_sequence_ends_an_answer(genai: Open, vault: Path) -> None:
    opened = genai(vault)
    assert len(opened.answer(prompt(vault, 3, 600), 100)) == ANSWER - 1
    assert opened.ask("ends") == [EOS]


CASES: dict[str, dict[str, Any]] = {
    "GQA": {},
    "sliding windows": {"checkpoint": "qwen3-sliding"},
    "tied head": {"checkpoint": "llama-tied"},
    "latents": {"checkpoint": "deepseek-v2"},
    "caches in 16 bits": {"cache_dtype": "fp16"},
    "budgets by head": {"budget": "heads", "head_budget": ((6, 20), (9, 9))},
    "full cache": {"policy": "full", "extend": False, "L_max": 160},
}


@pytest.mark.parametrize("name", CASES)
def test_families_answer_as_ours(genai: Open, tmp_path: Path, name: str) -> None:
    build = cases.build_of(Case(batch=1, **{"extend": True, **CASES[name]})).directory
    write_folder(GenaiOptions(build=build, out=tmp_path / "out"))
    opened = genai(tmp_path / "out")
    llm = LLM(build, prefill="chunks" if name == "full cache" else "blocks")
    for length in (60, 90):
        tokens = cases.prompt(length)
        found = opened.answer(tokens, 12)
        assert len(found) > 3 and found == likeliest(llm, tokens, 12)[: len(found)], length


def test_turns_and_rewinds_are_those_of_the_graph(genai: Open, vault: Path) -> None:
    """Genai's own positions after a turn whose last token was never run."""
    opened, caller, ids = genai(vault), Caller(vault), random_tokens(700)
    opened.start()
    opened.ask("append", 0, ids[:100])
    caller.append(ids[:100])
    sampled = opened.ask("generate", 0, 3)
    for token in sampled[:-1]:
        caller.append([token])
    caller.sample(sampled[-1])
    assert len(caller.tokens) == opened.ask("count", 0)
    for part in (ids[100:160], ids[160:161]):
        opened.ask("append", 0, part)
        assert np.allclose(opened.ask("logits", 0), caller.append(part), atol=1e-4)
    opened.ask("rewind", 0, 150)
    caller.rewind_to(150)
    for part in (ids[200:230], ids[230:600]):
        opened.ask("append", 0, part)
        assert np.allclose(opened.ask("logits", 0), caller.append(part), atol=1e-4)


def test_answer_after_a_rewind_to_its_prompt_is_the_same(genai: Open, vault: Path) -> None:
    opened, tokens = genai(vault), prompt(vault, 6, 100)
    first = opened.answer(tokens, ANSWER)
    opened.ask("rewind", 0, 100)
    assert opened.ask("generate", 0, ANSWER) == first


def test_rewind_that_is_not_exact_is_an_error(genai: Open, vault: Path) -> None:
    opened, ids = genai(vault), random_tokens(700)
    opened.start()
    opened.ask("append", 0, ids[:600])
    opened.ask("rewind", 0, 500)
    with pytest.raises(GenaiError, match=REFUSAL):
        opened.ask("append", 0, ids[500:])
    opened.ask("rewind", 0, 0)
    opened.ask("append", 0, ids[:50])
    again = opened.ask("logits", 0)
    opened.start(1)
    opened.ask("append", 1, ids[:50])
    assert opened.ask("logits", 1) == again


def test_generators_of_one_model_do_not_know_each_other(genai: Open, vault: Path) -> None:
    opened = genai(vault)
    prompts = [prompt(vault, seed, 400 + 200 * seed) for seed in range(3)]
    alone = [opened.answer(tokens, ANSWER) for tokens in prompts]
    for name, tokens in enumerate(prompts):
        opened.start(name)
        opened.ask("append", name, tokens)
    found = [opened.ask("generate", name, 1) for _ in range(ANSWER - 1) for name in range(3)]
    assert [[*chain(*found[name::3])] for name in range(3)] == alone


def test_what_one_sequence_cannot_do_is_refused(genai: Open, vault: Path) -> None:
    opened, ids = genai(vault), random_tokens(60)
    opened.start(batch_size=2)
    with pytest.raises(GenaiError, match="Expected: 1"):
        opened.ask("append_rows", 0, [ids[:30], ids[30:]])
    with pytest.raises(GenaiError, match="Beam search"):
        opened.start(num_beams=2)


def test_drafts_are_refused(genai: Open, vault: Path) -> None:
    opened = genai(vault)
    with pytest.raises(GenaiError, match="logits"):
        opened.ask("draft", 0, {"do_sample": False}, {"ngram_size": 3, "max_draft_tokens": 4})
        opened.ask("append", 0, random_tokens(60))
        opened.ask("generate", 0, ANSWER)


def test_context_is_the_models(genai: Open, vault: Path) -> None:
    opened = genai(vault)
    opened.start(max_length=2304)
    with pytest.raises(GenaiError, match="max_length"):
        opened.start(max_length=2305)


def test_tokenizer_gives_our_ids(genai: Open, vault: Path) -> None:
    opened = genai(vault)
    ours = Tokenizer.from_file(str(vault / "tokenizer.json"))
    for text in TEXTS:
        assert opened.ask("encode", text, True) == ours.encode(text).ids
        assert opened.ask("encode", text, False) == ours.encode(text, add_special_tokens=False).ids


def test_memory_does_not_grow_with_a_prompt(genai: Open, tmp_path: Path) -> None:
    build = cases.build_of(Case(extend=True, batch=1)).directory
    write_folder(GenaiOptions(build=build, out=tmp_path / "out"))
    opened = genai(tmp_path / "out")
    opened.start()
    tokens = [token % 250 + 3 for token in random_tokens(900)]
    opened.ask("append", 0, tokens[:300])
    before = opened.ask("memory")
    opened.ask("append", 0, tokens[300:])
    assert opened.ask("memory") - before < 8 << 20
