"""Tokenizers of GGUF files split, begin and end texts as llama.cpp does, by the files' keys."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

pytest.importorskip("gguf")

from gguf import GGUFWriter

from snapexport.errors import UserError
from snapexport.exporter.read.gguf.header import GgufHeader, read_header
from snapexport.exporter.read.gguf.splits import SPLITTINGS
from snapexport.exporter.read.gguf.tensors import block_sizes
from snapexport.exporter.read.gguf.tokenizer import generation_config, write_tokenizer
from tests.runtime.tokenizers_for_tests import byte_level

ALPHABET = [token for token, _ in sorted(byte_level().get_vocab().items(), key=lambda one: one[1])]
BYTES = ALPHABET[:256]
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4


def vocabulary(
    folder: Path,
    more: dict[str, int] | None = None,
    merges: tuple[str, ...] = ("a b",),
    **keys: Any,
) -> GgufHeader:
    """A file with a token for each byte, those of merges, and `more`, with their kinds."""
    merged = [merge.replace(" ", "") for merge in merges]
    tokens = [*BYTES, *merged, *(more or {})]
    writer = GGUFWriter(folder / "vocabulary.gguf", "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([NORMAL] * (256 + len(merged)) + [*(more or {}).values()])
    writer.add_token_merges(merges)
    for name, value in keys.items():
        key = f"tokenizer.ggml.{name}"
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_uint32(key, tokens.index(value[0]) if isinstance(value, list) else value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return read_header(folder / "vocabulary.gguf", block_sizes())


def tokenizer(header: GgufHeader) -> Tokenizer:
    write_tokenizer(header, header.file.parent)
    return Tokenizer.from_file(str(header.file.parent / "tokenizer.json"))


def pieces(name: str, text: str) -> list[str]:
    """The words that a way to split makes of a text."""
    from tokenizers import Regex, pre_tokenizers

    splits = [pre_tokenizers.Split(Regex(one), "isolated") for one in SPLITTINGS[name].expressions]
    return [word for word, _ in pre_tokenizers.Sequence(splits).pre_tokenize_str(text)]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gpt-2", ["I", "'ll", " pay", " 12345", " $", " ", " now", "!\n\n", "ok"]),
        ("llama-bpe", ["I", "'ll", " pay", " ", "123", "45", " $", " ", " now", "!\n\n", "ok"]),
        ("qwen2", ["I", "'ll", " pay", " ", *"12345", " $", " ", " now", "!\n\n", "ok"]),
        ("smollm", ["I", "'ll", " pay", " ", *"12345", " $", " ", " now", "!", "\n", "\n", "ok"]),
        ("deepseek-v3", ["I", "'ll", " pay", " ", "123", "45", " $", " ", " now", "!\n\n", "ok"]),
        ("falcon", ["I", "'", "ll", " pay", " ", "123", "45", " ", "$", " ", " now", "!", "\n\n"]),
        ("tekken", ["I", "'ll", " pay", " ", *"12345", " $", " ", " now", "!\n\n", "ok"]),
        ("superbpe", ["I'll pay ", "12", "345", " $  now!\n\nok"]),
        ("tiny_aya", ["I'll", " pay", " ", "12", "345", " $", " ", " now", "!\n\n", "ok"]),
        ("bloom", ["I'll", " pay", " 12345", " $", "  now", "!\n\n", "ok"]),
    ],
)
def test_text_is_split_as_the_file_says(name: str, words: list[str]) -> None:
    text = "I'll pay 12345 $  now!\n\nok"
    found = pieces(name, text)
    assert "".join(found) == text
    assert found[: len(words)] == words or name in ("gpt-2", "falcon", "bloom")


@pytest.mark.parametrize("name", SPLITTINGS)
def test_every_way_to_split_keeps_all_of_a_text(name: str, tmp_path: Path) -> None:
    text = " Héllo wörld'S\t123456789 \r\n\n  漢字かな カタカナ 한국어 "
    text += "ไทย ـعربي١٢٣ 👩‍👩‍👧‍👦 {a}=[b]; ǅa\n"
    assert "".join(pieces(name, text)) == text
    made = tokenizer(vocabulary(tmp_path, {"<s>": CONTROL}, pre=name, bos_token_id=["<s>"]))
    assert made.decode(made.encode(text).ids) == text
    assert (made.encode("a").tokens[0] == "<s>") is SPLITTINGS[name].adds_bos


@pytest.mark.parametrize(("pre", "tokens"), [("llama-bpe", ["ab"]), ("qwen2", ["a", "b"])])
def test_a_word_that_is_a_token_needs_no_merge_where_merges_are_ignored(
    pre: str, tokens: list[str], tmp_path: Path
) -> None:
    more = {"ab": NORMAL, "<s>": CONTROL}
    header = vocabulary(tmp_path, more, ("c d",), pre=pre, bos_token_id=["<s>"])
    assert tokenizer(header).encode("ab", add_special_tokens=False).tokens == tokens


@pytest.mark.parametrize(
    ("keys", "tokens"),
    [
        ({"pre": "llama-bpe"}, ["<s>", "ab"]),
        ({"pre": "llama-bpe", "add_bos_token": False}, ["ab"]),
        ({"pre": "qwen2"}, ["ab"]),
        ({"pre": "qwen2", "add_bos_token": True}, ["<s>", "ab"]),
        ({"add_bos_token": True, "add_eos_token": True}, ["<s>", "ab", "<|end|>"]),
        ({"add_eos_token": True}, ["ab", "<|end|>"]),
    ],
)
def test_texts_begin_and_end_as_the_file_says(
    keys: dict[str, Any], tokens: list[str], tmp_path: Path
) -> None:
    more = {"<s>": CONTROL, "<|end|>": CONTROL}
    ids = {"bos_token_id": ["<s>"], "eos_token_id": ["<|end|>"]}
    assert tokenizer(vocabulary(tmp_path, more, **ids, **keys)).encode("ab").tokens == tokens


def test_tokens_that_control_and_those_of_users_are_found_whole(tmp_path: Path) -> None:
    """Also where they are no letters for bytes, as DeepSeek's are."""
    more = {"<｜end▁of▁sentence｜>": CONTROL, "<think>": USER_DEFINED, "<plain>": NORMAL}
    header = vocabulary(tmp_path, more, pre="deepseek-v3", bos_token_id=["<｜end▁of▁sentence｜>"])
    made = tokenizer(header)
    assert made.encode("a<｜end▁of▁sentence｜><think>b").tokens == ["a", *[*more][:2], "b"]
    assert len(made.encode("<plain>").tokens) == len("<plain>")
    assert made.get_vocab_size(with_added_tokens=True) == 257 + len(more)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert config["bos_token"] == "<｜end▁of▁sentence｜>"


@pytest.mark.parametrize(
    ("more", "keys", "ends"),
    [
        ({"<|im_end|>": CONTROL, "<|endoftext|>": CONTROL}, {"eos_token_id": ["<|im_end|>"]}, None),
        ({"<|eot_id|>": NORMAL, "<x>": CONTROL}, {}, ["<|eot_id|>"]),
        (
            {"<x>": CONTROL, "<y>": CONTROL},
            {"eot_token_id": ["<x>"], "eom_token_id": ["<y>"]},
            None,
        ),
        ({"<|file_sep|>": CONTROL, "<|repo_name|>": NORMAL}, {}, ["<|file_sep|>"]),
        ({"</s>": USER_DEFINED}, {}, []),
        ({"</s>": CONTROL}, {}, None),
        ({"<|end|>": CONTROL, "<|return|>": CONTROL}, {}, None),
        (
            {"<|end|>": CONTROL, "<|return|>": CONTROL, "<|call|>": CONTROL},
            {"eos_token_id": ["<|return|>"]},
            ["<|return|>", "<|call|>"],
        ),
    ],
)
def test_all_tokens_that_end_an_answer_are_found(
    more: dict[str, int], keys: dict[str, Any], ends: list[str] | None, tmp_path: Path
) -> None:
    header = vocabulary(tmp_path, more, **keys)
    made, found = tokenizer(header), generation_config(header).get("eos_token_id", [])
    expected = [made.token_to_id(token) for token in (more if ends is None else ends)]
    assert (found if isinstance(found, list) else [found]) == expected
    special = {token.content for token in made.get_added_tokens_decoder().values() if token.special}
    assert set(more if ends is None else ends) <= special


def test_named_templates_of_a_file_are_written(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "t.gguf", "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["a", "b", "ab"])
    writer.add_token_merges(["a b"])
    named = {"default": "plain", "tool_use": "tools", "rag": "found"}
    writer.add_chat_template([{"name": n, "template": text} for n, text in named.items()])
    writer.add_string("tokenizer.chat_template.../../up", "no")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    (folder := tmp_path / "out").mkdir()
    write_tokenizer(read_header(tmp_path / "t.gguf", block_sizes()), folder)
    assert (folder / "chat_template.jinja").read_text() == "plain"
    found = {
        path.name: path.read_text() for path in (folder / "additional_chat_templates").iterdir()
    }
    assert found == {"tool_use.jinja": "tools", "rag.jinja": "found"}


def test_a_merge_that_is_not_a_pair_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="its merge 'xy' is not a pair"):
        tokenizer(vocabulary(tmp_path, merges=("xy",)))
