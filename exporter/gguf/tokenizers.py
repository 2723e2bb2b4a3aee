"""Makes a tokenizer.json of a GGUF file's vocabulary, with the tokens that llama.cpp gives."""

from collections.abc import Mapping
from typing import Any

from snapexport.exporter.architectures.families import MERGED_PIECES
from snapexport.exporter.gguf import lists
from snapexport.exporter.gguf.end_tokens import end_tokens
from snapexport.exporter.gguf.keys import TOKENIZER
from snapexport.exporter.gguf.vocabulary import (
    CONTROL,
    UNKNOWN,
    USER_DEFINED,
    Vocabulary,
    unusable,
)

Json = dict[str, Any]


def byte_level(vocabulary: Vocabulary) -> Json:
    """Of a vocabulary in letters for bytes, as those of GPT-2, Llama 3 and Qwen."""
    splitting = vocabulary.splitting
    splits = [
        {"type": "Split", "pattern": {"Regex": one}, "behavior": "Isolated", "invert": False}
        for one in splitting.expressions
    ]
    letters = {"add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {
        "version": "1.0",
        "added_tokens": added_tokens(vocabulary, vocabulary.ids),
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [*splits, {"type": "ByteLevel", **letters}],
        },
        "post_processor": ends_of_texts(vocabulary),
        "decoder": {"type": "ByteLevel", **letters},
        "model": {
            "type": "BPE",
            "ignore_merges": splitting.ignores_merges,
            "vocab": vocabulary.ids,
            "merges": _merges(vocabulary),
        },
    }


def by_pieces(vocabulary: Vocabulary, made: Json) -> Json:
    """transformers' tokenizer of SentencePiece's vocabulary, with the spaces that the file wants.

    By scores, a text begins with a space, whether it has one or not, and so does one after a
    special token.
    """
    made = made | {
        "added_tokens": added_tokens(vocabulary, made["model"]["vocab"]),
        "post_processor": ends_of_texts(vocabulary),
    }
    if vocabulary.model == MERGED_PIECES:
        return made
    steps: list[Json] = [{"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]
    if vocabulary.begins_with_space:
        steps.insert(0, {"type": "Prepend", "prepend": "▁"})
    decoders: list[Json] = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if vocabulary.begins_with_space:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return made | {
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
    }


def added_tokens(vocabulary: Vocabulary, spelled: Mapping[str, int]) -> list[Json]:
    """Tokens that are found in a text before it is split. Those that control are special.

    spelled: the model's. Gemma's tokens of several spaces are found by it, and not before.
    """
    special = {number for number, kind in enumerate(vocabulary.kinds) if kind in (UNKNOWN, CONTROL)}
    special |= set(end_tokens(vocabulary))
    others = {number for number, kind in enumerate(vocabulary.kinds) if kind == USER_DEFINED}
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return [
        {"id": n, "content": vocabulary.tokens[n], **plain, "special": n in special}
        for n in sorted(special | others)
        if spelled.get(vocabulary.tokens[n]) == n
    ]


def ends_of_texts(vocabulary: Vocabulary) -> Json | None:
    """What puts BOS before a text, and EOS after it, where the file wants them."""
    wanted = {
        "bos": vocabulary.adds_bos,
        "eos": vocabulary.flag("add_eos_token", False),
    }
    found = {name: vocabulary.token(name) for name, is_wanted in wanted.items() if is_wanted}
    for name, number in found.items():
        if number is None:
            why = f"it adds {name.upper()} to texts, and has no {name}_token_id"
            raise unusable(vocabulary.header, why)
    if not found:
        return None
    texts = {
        name: vocabulary.tokens[number] for name, number in found.items() if number is not None
    }
    of = {
        text: {"id": text, "ids": [vocabulary.ids[text]], "tokens": [text]}
        for text in texts.values()
    }
    return {
        "type": "TemplateProcessing",
        "single": _sequence(texts, "A", 0),
        "pair": [*_sequence(texts, "A", 0), *_sequence(texts, "B", 1)],
        "special_tokens": of,
    }


def _sequence(texts: dict[str, str], name: str, kind: int) -> list[Json]:
    parts: list[Json] = [{"Sequence": {"id": name, "type_id": kind}}]
    for place, text in texts.items():
        token = {"SpecialToken": {"id": text, "type_id": kind}}
        parts.insert(0 if place == "bos" else len(parts), token)
    return parts


def _merges(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """Pairs that are merged, the first ones first; without those that make no token."""
    found, known = lists.texts(vocabulary.header, f"{TOKENIZER}.ggml.merges"), vocabulary.ids
    if not found:
        raise unusable(vocabulary.header, f"it has no {TOKENIZER}.ggml.merges")
    pairs = []
    for merge in found:
        at = merge.find(" ", 1)  # a token may be a space itself
        if at < 0:
            raise unusable(vocabulary.header, f"its merge {merge!r:.100} is no pair of tokens")
        left, right = merge[:at], merge[at + 1 :]
        if left in known and right in known and left + right in known:
            pairs.append((left, right))
    return pairs
