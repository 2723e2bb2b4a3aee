"""Writes the config, tokenizer and chat template of a GGUF file as the files of a checkpoint.

Its tokenizer.json gives the tokens that llama.cpp gives.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snapexport.errors import UserError
from snapexport.exporter.quiet import quiet
from snapexport.exporter.read.families import MERGED_PIECES
from snapexport.exporter.read.folders import CHAT_TEMPLATE, MORE_TEMPLATES, TOKENIZER_CONFIG
from snapexport.exporter.read.gguf.config import require_single
from snapexport.exporter.read.gguf.header import (
    DOWNLOAD_AGAIN,
    TOKENIZER,
    GgufHeader,
    list_of_texts,
    own_metadata,
)
from snapexport.exporter.read.gguf.vocabulary import (
    BYTE_LEVEL,
    CONTROL,
    UNKNOWN,
    USER_DEFINED,
    Vocabulary,
    end_tokens,
    unusable,
)
from snapexport.files.tokenizer_file import TOKENIZER as TOKENIZER_FILE
from snapexport.files.tokenizer_file import tokenizer_errors
from snapexport.files.untrusted import is_plain_name

if TYPE_CHECKING:
    from transformers import PretrainedConfig

Json = dict[str, Any]


def byte_level(vocabulary: Vocabulary) -> Json:
    """The tokenizer of a vocabulary in letters for bytes, as those of GPT-2, Llama 3 and Qwen."""
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
    """The processor that puts BOS before a text, and EOS after it, where the file wants them."""
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
    found, known = list_of_texts(vocabulary.header, f"{TOKENIZER}.ggml.merges"), vocabulary.ids
    if not found:
        raise unusable(vocabulary.header, f"it has no {TOKENIZER}.ggml.merges")
    pairs = []
    for merge in found:
        at = merge.find(" ", 1)  # a token may be a space itself
        if at < 0:
            raise unusable(vocabulary.header, f"its merge {merge!r:.100} is not a pair of tokens")
        left, right = merge[:at], merge[at + 1 :]
        if left in known and right in known and left + right in known:
            pairs.append((left, right))
    return pairs


_NAMED = {
    "bos_token": ("bos",),
    "eos_token": ("eos",),
    "unk_token": ("unknown",),
    "pad_token": ("padding",),
    "sep_token": ("seperator", "separator"),  # the format spells it so
    "mask_token": ("mask",),
    "cls_token": ("cls",),
}


def write_configs(header: GgufHeader, config: "PretrainedConfig", folder: Path) -> None:
    """Write config.json and generation_config.json."""
    (folder / "config.json").write_text(config.to_json_string())
    (folder / "generation_config.json").write_text(json.dumps(generation_config(header), indent=2))


def write_tokenizer(header: GgufHeader, folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat templates, if the file has them."""
    vocabulary = Vocabulary.of(header)
    if vocabulary is None:
        return
    made = (
        byte_level(vocabulary)
        if vocabulary.model == BYTE_LEVEL
        else _by_transformers(vocabulary, folder)
    )
    (folder / TOKENIZER_FILE).write_bytes(json.dumps(made, ensure_ascii=False).encode())
    ids = {name: vocabulary.token(*keys) for name, keys in _NAMED.items()}
    named = {name: vocabulary.tokens[number] for name, number in ids.items() if number is not None}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **named}
    text = json.dumps(config, ensure_ascii=False, indent=2)
    (folder / TOKENIZER_CONFIG).write_bytes(text.encode())
    for key, source in own_metadata(header, TOKENIZER).items():
        if key.partition(".")[0] == "chat_template" and isinstance(source, str):
            _write_template(folder, key.partition(".")[2], source)


def _write_template(folder: Path, name: str, source: str) -> None:
    if not name:
        (folder / CHAT_TEMPLATE).write_bytes(source.encode())
    elif is_plain_name(name):
        (folder / MORE_TEMPLATES).mkdir(exist_ok=True)
        (folder / MORE_TEMPLATES / f"{name}.jinja").write_bytes(source.encode())


def _by_transformers(vocabulary: Vocabulary, folder: Path) -> dict[str, Any]:
    """Merges of a vocabulary without them follow from scores, as transformers derives them."""
    from transformers import PreTrainedTokenizerFast

    header = vocabulary.header
    # In a folder of its own, other files beside the user's have no say.
    link = folder / "model.gguf"
    link.symlink_to(header.file.resolve())
    try:
        with tokenizer_errors(f"{header.file} has no usable tokenizer"), quiet():
            made = PreTrainedTokenizerFast.from_pretrained(folder, gguf_file=link.name)
            text = made.backend_tokenizer.to_str()
    except UserError as error:
        raise UserError(error.message, DOWNLOAD_AGAIN) from None
    finally:
        link.unlink()
    return by_pieces(vocabulary, json.loads(text))


_ENDS = tuple(f"{TOKENIZER}.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))


def generation_config(header: GgufHeader) -> dict[str, Any]:
    """All tokens that end an answer. Raises UserError for a tokenizer that is not read."""
    vocabulary = Vocabulary.of(header)
    if vocabulary is None:
        require_single(header, header.metadata, _ENDS)
        ends = [header.metadata[key] for key in _ENDS if key in header.metadata]
    else:
        ends = [*end_tokens(vocabulary)]
    return {"eos_token_id": ends[0] if len(ends) == 1 else ends} if ends else {}
