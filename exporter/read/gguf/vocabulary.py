"""Reads and checks the vocabulary of a GGUF file: tokens, their kinds, and those with a meaning.

Every `tokenizer.` key is applied, has no meaning for text, or is refused. llama.cpp says what a key
means, and what holds where it is missing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from snapexport.errors import UserError
from snapexport.exporter.read.families import HELD, MERGED_PIECES, PIECES
from snapexport.exporter.read.gguf.header import (
    DOWNLOAD_AGAIN,
    ORIGINAL,
    TOKENIZER,
    GgufHeader,
    Listed,
    Value,
    list_of_numbers,
    list_of_texts,
    own_metadata,
)
from snapexport.exporter.read.gguf.splits import SPLITTINGS, Splitting

TOKENS = f"{TOKENIZER}.ggml.tokens"
BYTE_LEVEL = "gpt2"
"""llama.cpp's name of tokenizers with a letter for each byte."""
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
"""Kinds of tokens."""
_APPLIED = {
    "chat_template",
    "ggml.model",
    "ggml.pre",
    "ggml.tokens",
    "ggml.token_type",
    "ggml.scores",
    "ggml.merges",
    "ggml.add_bos_token",
    "ggml.add_eos_token",
    "ggml.add_space_prefix",
}
_WITHOUT_MEANING = {
    "chat_templates",  # the names of those that follow
    "ggml.token_type_count",
    "ggml.remove_extra_whitespaces",  # of unigram tokenizers
    "huggingface.json",  # the same once more
}
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "ggml.add_sep_token": (False,),
    "ggml.normalizer.lowercase": (False,),
    "ggml.normalizer.strip_accents": (False,),
}
"""The values that change nothing."""
_EMPTY = ("ggml.precompiled_charsmap", "ggml.suppress_tokens")
_IDS = (
    *("bos", "eos", "eot", "eom", "unknown", "seperator", "separator", "padding", "mask", "cls"),
    *("fim_pre", "fim_suf", "fim_mid", "fim_pad", "fim_rep", "fim_sep"),
    *("prefix", "suffix", "middle"),
)
"""Names of tokens with an id of their own, the last three from before `fim_`."""
_NEEDED = ("bos", "eos", "eot", "eom")
_PIECES_DEFAULTS = {"bos": 1, "eos": 2, "unknown": 0}
"""Ids in files that don't say."""
_FLAGS = ("add_bos_token", "add_eos_token", "add_space_prefix")


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a file, by their ids. kinds: numbers of their types."""

    header: GgufHeader
    tokens: list[str]
    kinds: list[int]
    model: str

    @classmethod
    def of(cls, header: GgufHeader) -> "Vocabulary | None":
        """None for a file without tokens. Raises UserError for what is not read, or contradicts."""
        if not isinstance(header.metadata.get(TOKENS), Listed):
            return None
        _require_known_keys(header)
        model = header.metadata.get(f"{TOKENIZER}.ggml.model")
        if model not in (BYTE_LEVEL, PIECES, MERGED_PIECES):
            raise unusable(
                header,
                f"it is of llama.cpp's kind {model!r:.100}, which is not read",
                f"these are: {BYTE_LEVEL}, {PIECES}, {MERGED_PIECES}. Else {ORIGINAL}",
            )
        found = list_of_texts(header, TOKENS)
        tokens = [token or f"[EMPTY_{number}]" for number, token in enumerate(found)]
        if len(set(tokens)) < len(tokens):
            raise unusable(header, "it has a token twice")
        return cls(header, tokens, _kinds(header, len(tokens)), str(model))

    @cached_property
    def ids(self) -> dict[str, int]:
        """The id of each token."""
        return {token: number for number, token in enumerate(self.tokens)}

    @cached_property
    def splitting(self) -> Splitting:
        """How text is split before merging. Raises UserError for a way that is not known."""
        name = self.key("pre") or "default"
        if name not in SPLITTINGS:
            raise UserError(
                f"{self.header.file} splits text as '{name!s:.100}', which is not known",
                "start from the original checkpoint: its tokenizer.json says how",
            )
        return SPLITTINGS[str(name)]

    def key(self, name: str) -> Value | None:
        """The value of `tokenizer.ggml.NAME`."""
        return self.header.metadata.get(f"{TOKENIZER}.ggml.{name}")

    def flag(self, name: str, default: bool) -> bool:
        """The value of a flag."""
        value = self.key(name)
        return default if value is None else bool(value)

    def token(self, *names: str) -> int | None:
        """The id under `tokenizer.ggml.NAME_token_id`, of the first name that the file has.

        Raises UserError for an id beyond the vocabulary; of a token that prompts don't need, such
        as padding, files have some.
        """
        for name in names:
            value: Any = self.key(f"{name}_token_id")
            if type(value) is int and 0 <= value < len(self.tokens):
                return value
            if isinstance(value, Listed):
                raise unusable(self.header, f"it has a list as ggml.{name}_token_id")
            if value is not None and name in _NEEDED:
                raise unusable(
                    self.header,
                    f"{name}_token_id {value!r:.100} is neither a token id nor a list of them: the "
                    f"vocabulary has {len(self.tokens)} tokens",
                )
        default = _PIECES_DEFAULTS.get(names[0]) if self.model == PIECES else None
        return default if default is not None and default < len(self.tokens) else None

    @property
    def adds_bos(self) -> bool:
        """Whether a text begins with BOS."""
        if self.model == BYTE_LEVEL:
            return self.flag("add_bos_token", self.splitting.adds_bos)
        return self.model == MERGED_PIECES or self.flag("add_bos_token", True)

    @property
    def begins_with_space(self) -> bool:
        """Whether a text gets a leading space."""
        named = self.header.metadata.get("general.architecture")
        forms = (family.gguf for family in HELD.values() if family.gguf)
        usual = next((form.spaced for form in forms if form.name == named), True)
        return self.flag("add_space_prefix", usual)


def unusable(header: GgufHeader, why: str, hint: str = DOWNLOAD_AGAIN) -> UserError:
    """The error of a file whose tokens nobody could use."""
    return UserError(f"{header.file} has no usable tokenizer: {why}", hint)


def _kinds(header: GgufHeader, count: int) -> list[int]:
    found = list_of_numbers(header, f"{TOKENIZER}.ggml.token_type")
    if not len(found):
        return [NORMAL] * count
    if len(found) < count:
        raise unusable(header, f"it has {len(found)} types of {count} tokens")
    if not np.isfinite(found).all():
        raise unusable(header, "it has types of tokens that are not numbers")
    return [int(kind) for kind in found[:count]]


def _require_known_keys(header: GgufHeader) -> None:
    """Raise UserError for a key that nobody would apply."""
    known = _APPLIED | _WITHOUT_MEANING | {f"ggml.{name}_token_id" for name in _IDS}
    for key, value in own_metadata(header, TOKENIZER).items():
        where = f"{header.file} has {TOKENIZER}.{key[:100]}"
        if key in _EMPTY and isinstance(value, Listed) and not value.length:
            continue
        if key in _NEUTRAL or key in _EMPTY:
            if value not in _NEUTRAL.get(key, ()):
                raise UserError(f"{where} = {_spell(value)}, which is not supported", ORIGINAL)
        elif key.removeprefix("ggml.") in _FLAGS and type(value) is not bool:
            raise UserError(f"{where} = {_spell(value)}, neither true nor false", DOWNLOAD_AGAIN)
        elif key not in known and not key.startswith("chat_template."):
            raise UserError(f"{where}, which is not known", ORIGINAL)


def _spell(value: Value) -> str:
    return f"a list of {value.length}" if isinstance(value, Listed) else f"{value!r:.100}"


_KEYS = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")
_NAMES = (
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
)
_IF_CONTROL = (
    "</s>",  # Gemma has it among its tags of HTML
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<|file_sep|>",
)
"""Words that may be text where the file doesn't say that they control."""
_NOT_WITH = {
    # The end of a message, where others end the answer.
    "<|end|>": ({"<|return|>", "<|call|>"}, {"<|call|>", "<|flush|>"}, {"<|calls|>", "<|flush|>"}),
    "</s>": ({"<|tool_response>"},),
}


def end_tokens(vocabulary: Vocabulary) -> list[int]:
    """Their ids: those of the file's keys first."""
    by_key = [vocabulary.token(name) for name in _KEYS]
    ids = vocabulary.ids
    named = [ids[name] for name in _NAMES if name in ids]
    named += [
        ids[name] for name in _IF_CONTROL if name in ids and vocabulary.kinds[ids[name]] == CONTROL
    ]
    without = {
        ids[name]
        for name, others in _NOT_WITH.items()
        if name in ids
        if any(ids.keys() >= together for together in others)
    }
    found = dict.fromkeys(token for token in [*by_key, *named] if token is not None)
    return [token for token in found if token not in without]
