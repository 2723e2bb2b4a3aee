"""A tokenizer in another format becomes tokenizer.json, or the build says what converts it."""

import json
import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from snapexport.builder.texts import read_texts
from snapexport.errors import UserError
from tests.runtime.tokenizers_for_tests import byte_level


@pytest.fixture
def bare(checkpoint: Path, tmp_path: Path) -> Path:
    """A checkpoint without a tokenizer, whose config names a class with vocab and merges."""
    mine = Path(shutil.copytree(checkpoint, tmp_path / "mine"))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (mine / name).unlink(missing_ok=True)
    (mine / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer"}))
    return mine


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("tokenizer.model", "sentencepiece protobuf"),
        ("tekken.json", "mistral-common"),
        ("qwen.tiktoken", "tiktoken"),
    ],
)
def test_error_of_a_tokenizer_that_cannot_be_converted_says_what_converts_it(
    name: str, package: str, bare: Path
) -> None:
    (bare / name).write_bytes(b"\0no tokenizer")
    with pytest.raises(UserError, match=f"has {name} and no tokenizer.json") as error:
        read_texts(bare)
    assert f"pip install {package}" in error.value.hint
    assert ".save_pretrained(FOLDER)" in error.value.hint


def test_vocab_and_merges_are_converted_as_by_transformers(bare: Path) -> None:
    vocab = {token: n for token, n in byte_level().get_vocab().items() if n < 256}
    (bare / "vocab.json").write_text(json.dumps(vocab | {"ab": 256}))
    (bare / "merges.txt").write_text("#version: 0.2\na b\n")
    tokenizer = Tokenizer.from_str(read_texts(bare)["tokenizer.json"].decode())
    for text in ("abc", " é ab\n12"):
        expected = AutoTokenizer.from_pretrained(bare)(text)["input_ids"]
        assert tokenizer.encode(text).ids == expected


def test_a_checkpoint_without_any_tokenizer_is_built_without(bare: Path) -> None:
    assert "tokenizer.json" not in read_texts(bare)
