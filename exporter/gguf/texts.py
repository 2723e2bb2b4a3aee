"""Writes a GGUF file's config, tokenizer and chat template as the files of a checkpoint."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snapexport.errors import UserError
from snapexport.exporter.gguf.config import generation_config
from snapexport.exporter.gguf.header import DOWNLOAD_AGAIN, GgufHeader
from snapexport.exporter.gguf.keys import TOKENIZER, own_metadata
from snapexport.exporter.gguf.tokenizers import by_pieces, byte_level
from snapexport.exporter.gguf.vocabulary import BYTE_LEVEL, Vocabulary
from snapexport.exporter.quiet import quiet
from snapexport.exporter.text_files import CHAT_TEMPLATE, MORE_TEMPLATES, TOKENIZER_CONFIG
from snapexport.files.tokenizer_file import TOKENIZER as TOKENIZER_FILE
from snapexport.files.tokenizer_file import tokenizer_errors
from snapexport.files.untrusted import is_plain_name

if TYPE_CHECKING:
    from transformers import PretrainedConfig

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
