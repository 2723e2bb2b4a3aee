"""Makes transformers' config of a GGUF file's metadata, by transformers' own table of names."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from snapexport.errors import UserError
from snapexport.exporter.architectures import HELD, Family
from snapexport.exporter.architectures.fields import require_ranges
from snapexport.exporter.gguf.cursor import Listed, Value
from snapexport.exporter.gguf.end_tokens import end_tokens
from snapexport.exporter.gguf.header import DOWNLOAD_AGAIN, GgufHeader
from snapexport.exporter.gguf.keys import (
    TOKENIZER,
    config_names,
    own_metadata,
    require_understood,
)
from snapexport.exporter.gguf.rope import llama3_scaling, rope_scaling
from snapexport.exporter.gguf.vocabulary import Vocabulary
from snapexport.exporter.quiet import quiet

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_ENDS = tuple(f"{TOKENIZER}.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))


def record_of(header: GgufHeader) -> Family:
    """The family that the file names. Raises UserError for any other."""
    name = header.metadata.get("general.architecture")
    known = {family.gguf.name: family for family in HELD.values() if family.gguf}
    if not isinstance(name, str) or name not in known:
        raise UserError(
            f"the architecture {name!r:.100} of {header.file} is not supported",
            f"GGUF files of these are read: {', '.join(known)}",
        )
    return known[name]


def model_config(
    header: GgufHeader, record: Family, rope_factors: NDArray[np.float32] | None
) -> "PretrainedConfig":
    """transformers' config, the ranges of its numbers checked. Raises UserError.

    rope_factors: of each pair's frequency, where the file has them (Llama 3.1 and later).
    """
    from transformers import AutoConfig

    assert record.gguf is not None
    require_understood(header, record.gguf)
    fields = _fields(header, record.gguf.name)
    require_ranges(fields)
    if rope_factors is not None:
        fields["rope_scaling"] = llama3_scaling(rope_factors, fields.get("rope_theta", 1e4))
    elif scaling := rope_scaling(own_metadata(header, record.gguf.name)):
        fields["rope_scaling"] = scaling
    try:
        with quiet():
            config: PretrainedConfig = AutoConfig.for_model(record.model_type, **fields)
    except Exception as error:  # transformers raises whatever its validators raise
        raise UserError(
            f"transformers refuses the metadata of {header.file}: "
            f"{' '.join(str(error).split())!s:.300}",
            DOWNLOAD_AGAIN,
        ) from None
    config.architectures = [record.name]
    return config


def _require_single(header: GgufHeader, entries: Mapping[str, Value], names: Iterable[str]) -> None:
    for key in names:
        if isinstance(entries.get(key), Listed):
            raise UserError(
                f"{header.file} has a list as {key}, which is not supported", DOWNLOAD_AGAIN
            )


def generation_config(header: GgufHeader) -> dict[str, Any]:
    """All tokens that end an answer. Raises UserError for a tokenizer that is not read."""
    vocabulary = Vocabulary.of(header)
    if vocabulary is None:
        _require_single(header, header.metadata, _ENDS)
        ends = [header.metadata[key] for key in _ENDS if key in header.metadata]
    else:
        ends = [*end_tokens(vocabulary)]
    return {"eos_token_id": ends[0] if len(ends) == 1 else ends} if ends else {}


def _fields(header: GgufHeader, name: str) -> dict[str, Any]:
    """The config's fields that the file has."""
    fields: dict[str, Any] = {}
    for prefix in (name, TOKENIZER):
        names = config_names(prefix)
        entries = own_metadata(header, prefix)
        _require_single(header, entries, names)
        fields |= {found: value for key, value in entries.items() if (found := names.get(key))}
    tokens = header.metadata.get(f"{TOKENIZER}.ggml.tokens")
    embedding = header.tensors.get("token_embd.weight")
    if isinstance(tokens, Listed):
        fields.setdefault("vocab_size", tokens.length)
    elif embedding:
        fields.setdefault("vocab_size", embedding.shape[0])
    fields["tie_word_embeddings"] = "output.weight" not in header.tensors
    return fields
