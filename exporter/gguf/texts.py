"""Writes a GGUF file's config, tokenizer and chat template as the files of a checkpoint."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from snapexport.errors import UserError
from snapexport.exporter.gguf.config import generation_config
from snapexport.exporter.gguf.cursor import Listed
from snapexport.exporter.gguf.header import DOWNLOAD_AGAIN, GgufHeader
from snapexport.exporter.quiet import quiet
from snapexport.files.tokenizer_file import tokenizer_errors

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_MODEL, _SPLIT = "tokenizer.ggml.model", "tokenizer.ggml.pre"
_AS_GPT2 = ("default", "gpt-2", "smollm")
"""Ways to split text that transformers reads as GPT-2's. SmolLM's splits digits off first, which
shows only where several spaces come before one."""


def write_configs(header: GgufHeader, config: "PretrainedConfig", folder: Path) -> None:
    """Write config.json and generation_config.json."""
    (folder / "config.json").write_text(config.to_json_string())
    (folder / "generation_config.json").write_text(json.dumps(generation_config(header), indent=2))


def write_tokenizer(header: GgufHeader, folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and the chat template, if the file has them."""
    if not isinstance(header.metadata.get("tokenizer.ggml.tokens"), Listed):
        return
    _require_known_split(header)
    from transformers import PreTrainedTokenizerFast

    # In a folder of its own, other files beside the user's have no say.
    link = folder / "model.gguf"
    link.symlink_to(header.file.resolve())
    try:
        with tokenizer_errors(f"{header.file} has no usable tokenizer"), quiet():
            tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, gguf_file=link.name)
            tokenizer.save_pretrained(folder)
    except UserError as error:
        raise UserError(error.message, DOWNLOAD_AGAIN) from None
    finally:
        link.unlink()


def _require_known_split(header: GgufHeader) -> None:
    """Refuse a way to split text that transformers would quietly replace by GPT-2's."""
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    known = (*GGUF_PRE_TOKENIZER_SPLITS, *_AS_GPT2)
    split = header.metadata.get(_SPLIT, "default")
    if header.metadata.get(_MODEL) == "gpt2" and split not in known:
        raise UserError(
            f"{header.file} splits text as '{split!s:.100}', which transformers does not know",
            "start from the original checkpoint: its tokenizer.json says how",
        )
