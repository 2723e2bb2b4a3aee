"""Templates and tokenizers of a build see the special tokens that transformers sees."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from snapexport.builder.texts import read_texts
from snapexport.exporter.model import model_facts
from snapexport.exporter.model.probe import load_decoder
from snapexport.exporter.read import open_checkpoint
from snapexport.runtime.chat.chat_prompts import Chat, ChatPrompts
from tests.runtime.tokenizers_for_tests import byte_level

SHOWN = "{{ bos_token }}|{{ eos_token }}|{{ pad_token }}|{{ messages[0].content }}"
ASKED = [{"role": "user", "content": "a<|end|>b<extra>c"}]
ADDED = {"content": "<|end|>", "lstrip": False, "normalized": False, "rstrip": False}
ADDED |= {"single_word": False, "special": True}
OWN = ADDED | {"content": "</s>"}
TOKENS = len(byte_level().get_vocab())
GENERATION = "generation_config.json"
PLAIN: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}


def lay(directory: Path, files: Mapping[str, object]) -> Path:
    byte_level().save(str(directory / "tokenizer.json"))
    config = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
    for name, content in {"config.json": config, **files}.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (directory / name).write_text(text)
    (directory / "chat_template.jinja").write_text(SHOWN)
    return directory


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer_config.json": PLAIN | {"bos_token": "<s>", "eos_token": "</s>"}},
        {"tokenizer_config.json": PLAIN, "special_tokens_map.json": {"bos_token": "<s>"}},
        {"special_tokens_map.json": {"bos_token": {"content": "<s>"}, "eos_token": "<|end|>"}},
        {
            "tokenizer_config.json": PLAIN | {"bos_token": "</s>"},
            "special_tokens_map.json": {"bos_token": "<s>", "pad_token": "<pad>"},
        },
        {
            "tokenizer_config.json": PLAIN
            | {"bos_token": "</s>", "added_tokens_decoder": {"256": OWN, str(TOKENS): ADDED}},
            "special_tokens_map.json": {"bos_token": "<s>"},
        },
        {"tokenizer_config.json": PLAIN, "added_tokens.json": {"<extra>": TOKENS}},
        {
            "tokenizer_config.json": PLAIN | {"eos_token": "<|end|>"},
            "added_tokens.json": {"<extra>": TOKENS, "<|end|>": TOKENS + 1},
        },
        {"tokenizer_config.json": PLAIN | {"extra_special_tokens": ["<extra>"]}},
        {"tokenizer_config.json": PLAIN | {"image_token": "<extra>"}},
        {},
    ],
    ids=[
        "config",
        "map",
        "map alone",
        "map overrules",
        "added tokens overrule the map",
        "added tokens of old",
        "added end",
        "extra",
        "of images",
        "tokenizer alone",
    ],
)
def test_tokens_are_those_of_transformers(files: dict[str, object], tmp_path: Path) -> None:
    lay(tmp_path, files)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    (build := tmp_path / "build").mkdir()
    for name, content in read_texts(tmp_path).items():
        (build / name).write_bytes(content)
    tokenizer = Tokenizer.from_file(str(build / "tokenizer.json"))
    ours = ChatPrompts.open(build, tokenizer)
    prompt = ours.prompt(Chat(ASKED))
    text = theirs.apply_chat_template(ASKED, tokenize=False)
    assert prompt.text == text
    assert prompt.token_ids == theirs(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.encode("one").ids == theirs("one")["input_ids"]
    for name, token in theirs.special_tokens_map.items():
        assert json.loads((build / "tokenizer_config.json").read_text())[name] == token


def test_files_without_more_tokens_are_copied_as_they_are(tmp_path: Path) -> None:
    config = PLAIN | {"bos_token": {"content": "<s>"}, "eos_token": "</s>"}
    lay(tmp_path, {"tokenizer_config.json": config})
    found = read_texts(tmp_path)
    for name, content in found.items():
        assert content == (tmp_path / name).read_bytes()
    assert set(found) == {path.name for path in tmp_path.iterdir()}


def test_no_token_is_added_beyond_the_model(tmp_path: Path) -> None:
    lay(tmp_path, {"tokenizer_config.json": PLAIN, "added_tokens.json": {"<extra>": TOKENS}})
    for vocab_size, is_known in ((TOKENS, False), (TOKENS + 1, True)):
        text = read_texts(tmp_path, vocab_size)["tokenizer.json"].decode()
        assert (Tokenizer.from_str(text).token_to_id("<extra>") is not None) is is_known


def test_a_tokenizer_that_transformers_refuses_is_copied(tmp_path: Path) -> None:
    config = {"tokenizer_class": "Nobody", "auto_map": {"AutoTokenizer": ["a.B", None]}}
    lay(tmp_path, {"tokenizer_config.json": config | {"added_tokens_decoder": {"x": 1}}})
    found = read_texts(tmp_path)
    assert found["tokenizer.json"] == (tmp_path / "tokenizer.json").read_bytes()


@pytest.mark.parametrize(
    ("tokenizer_config", "expected"),
    [({}, SHOWN), ({"chat_template": "own"}, None)],
)
def test_the_template_of_a_processor_is_taken_where_the_tokenizer_has_none(
    tokenizer_config: dict[str, str], expected: str | None, tmp_path: Path
) -> None:
    lay(tmp_path, {"tokenizer_config.json": PLAIN | tokenizer_config})
    (tmp_path / "chat_template.jinja").unlink()
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": SHOWN}))
    found = read_texts(tmp_path).get("chat_template.jinja")
    assert found == (expected and expected.encode())


@pytest.mark.parametrize(
    ("files", "ends"),
    [
        (
            {
                "generation_config.json": {"eos_token_id": [3, 4]},
                "config.json": {"eos_token_id": 5},
            },
            [3, 4],
        ),
        (
            {"generation_config.json": {"eos_token_id": None}, "config.json": {"eos_token_id": 5}},
            [5],
        ),
        ({"generation_config.json": {}, "config.json": {"eos_token_id": [5, 6]}}, [5, 6]),
        ({"config.json": {"eos_token_id": None}}, [256]),
        ({"config.json": {"eos_token_id": None}, "tokenizer.json": None}, []),
    ],
    ids=["both", "null", "config", "tokenizer", "none"],
)
def test_end_tokens_are_those_of_the_first_file_that_says(
    files: dict[str, Any], ends: list[int], checkpoint: Path, tmp_path: Path
) -> None:
    mine = Path(shutil.copytree(checkpoint, tmp_path / "mine"))
    (mine / GENERATION).unlink()
    byte_level().save(str(mine / "tokenizer.json"))
    (mine / "tokenizer_config.json").write_text(json.dumps(PLAIN | {"eos_token": "</s>"}))
    for name, fields in files.items():
        kept = json.loads((mine / name).read_text()) if name == "config.json" else {}
        if fields is None:
            (mine / name).unlink()
        else:
            (mine / name).write_text(json.dumps(kept | fields))
    opened = open_checkpoint(mine)
    assert model_facts(load_decoder(opened), opened).eos_token_id == ends
