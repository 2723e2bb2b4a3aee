"""The bundled checkpoint retrieves values, with the full cache and with an eighth of it."""

from importlib.resources import files
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from snapexport import LLM, SamplingParams
from snapexport.cli.app import main
from snapexport.contract.build_directory import Build
from snapexport.vault.prompts import VaultPrompt, make_prompt
from tests.builds import build

CHECKPOINT = Path(str(files("snapexport.vault"))) / "checkpoint"
PROMPTS = 20


@pytest.fixture(scope="module")
def vault(tmp_path_factory: pytest.TempPathFactory) -> Build:
    out = tmp_path_factory.mktemp("vault") / "b"
    return build(CHECKPOINT, out, L_max=2064, kv_budget=256, batch=2, baseline=True)


def right(llm: LLM, prompts: list[VaultPrompt]) -> int:
    params = SamplingParams(max_tokens=12, stop=("\n",))
    completions = llm.generate([prompt.text for prompt in prompts], params)
    return sum(c.text == p.answer for c, p in zip(completions, prompts, strict=True))


@pytest.mark.parametrize("baseline", [pytest.param(True, marks=pytest.mark.slow), False])
def test_the_vault_checkpoint_retrieves_from_2048_tokens(vault: Build, baseline: bool) -> None:
    prompts = [make_prompt(900_000 + seed, 2048) for seed in range(PROMPTS)]
    llm = LLM(vault.directory, baseline=baseline, threads=2)
    assert right(llm, prompts) >= 0.95 * PROMPTS


def test_vault_prompts_have_their_length_and_are_text() -> None:
    tokenizer = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
    for tokens in (128, 513, 2048):
        prompt = make_prompt(3, tokens)
        ids = tokenizer.encode(prompt.text).ids
        assert len(ids) == prompt.tokens == tokens
        assert f"\n{prompt.key}:{prompt.answer}\n" in prompt.text
        assert prompt.text.endswith(f"{prompt.key}:")
        assert tokenizer.decode(ids) == prompt.text


def test_the_vault_tokenizer_spells_any_text() -> None:
    tokenizer = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
    for text in ("naïve café", "日本語", "🦦🔑", "\x00\x07", " a  b "):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_the_vault_checkpoint_is_small() -> None:
    assert (CHECKPOINT / "model.safetensors").stat().st_size < 8e6


def test_demo_prints_the_answers_of_both_caches(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--more", "0"]) == 0
    out = capsys.readouterr().out
    for expected in (
        "full cache answers",
        "snapstream answers",
        "layer  1 head  1",
        "KiB of cache",
    ):
        assert expected in out
