"""Makes transformers' config of a GGUF file's metadata, by transformers' own table of names.

What that table lacks and the model depends on is read here, or refused.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from snapexport.contract.errors import UserError, first_line
from snapexport.exporter.architectures import VERIFIED, Architecture
from snapexport.exporter.architectures.fields import require_ranges
from snapexport.exporter.gguf.cursor import Listed, Value
from snapexport.exporter.gguf.header import DOWNLOAD_AGAIN, GgufHeader

if TYPE_CHECKING:
    from transformers import PretrainedConfig

ORIGINAL = "start from the original checkpoint, in safetensors"
_NEEDED = (
    "context_length",
    "block_count",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.layer_norm_rms_epsilon",
)
_MORE_NAMES = {
    "attention.key_length": "head_dim",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
"""Keys that transformers leaves out for some architectures, and the config's names for them."""
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "attention.scale": (0.0,),
    "embedding_scale": (1.0,),
    "expert_count": (0,),
    "logit_scale": (1.0,),
    "residual_scale": (1.0,),
    "rope.scale_linear": (1.0,),
    "rope.scaling.attn_factor": (1.0,),
}
"""Keys that transformers drops, and the values with which that changes nothing."""
_SCALINGS = ("linear", "yarn")
_END_OF_TURN = "tokenizer.ggml.eot_token_id"


def record_of(header: GgufHeader) -> Architecture:
    """The architecture that the file names. Raises UserError for any that is not verified."""
    name = header.metadata.get("general.architecture")
    known = {one.gguf.name: one for one in VERIFIED.values() if one.gguf}
    if not isinstance(name, str) or name not in known:
        raise UserError(
            f"the architecture {name!r:.100} of {header.file} is not supported",
            f"GGUF files of these are read: {', '.join(known)}",
        )
    _require_whole(header)
    return known[name]


def _require_whole(header: GgufHeader) -> None:
    parts = header.metadata.get("split.count", 1)
    if parts not in (0, 1):
        raise UserError(
            f"{header.file} is one of {parts!r:.20} parts of a split file",
            "join them first: `llama-gguf-split --merge FIRST-PART.gguf WHOLE.gguf`",
        )


def model_config(
    header: GgufHeader, record: Architecture, rope_factors: NDArray[np.float32] | None
) -> "PretrainedConfig":
    """transformers' config, the ranges of its numbers checked. Raises UserError.

    rope_factors: of each pair's frequency, where the file has them (Llama 3.1 and later).
    """
    from transformers import AutoConfig

    assert record.gguf is not None
    metadata = _without_prefix(header.metadata, record.gguf.name)
    _require_understood(header, record, metadata)
    fields = _fields(header, record.gguf.name, metadata)
    require_ranges(fields)
    if rope_factors is not None:
        fields["rope_scaling"] = llama3_scaling(rope_factors, fields.get("rope_theta", 1e4))
    elif scaling := _rope_scaling(metadata):
        fields["rope_scaling"] = scaling
    try:
        config: PretrainedConfig = AutoConfig.for_model(record.model_type, **fields)
    except Exception as error:  # transformers raises whatever its validators raise
        raise UserError(
            f"transformers refuses the metadata of {header.file}: {first_line(error)!s:.300}",
            DOWNLOAD_AGAIN,
        ) from None
    config.architectures = [record.name]
    return config


def generation_config(header: GgufHeader) -> dict[str, Any]:
    """The end tokens: that of a text, and that of a turn."""
    ends = [header.metadata.get(name) for name in ("tokenizer.ggml.eos_token_id", _END_OF_TURN)]
    known = [end for end in dict.fromkeys(ends) if end is not None]
    return {"eos_token_id": known[0] if len(known) == 1 else known} if known else {}


def _without_prefix(metadata: Mapping[str, Value], prefix: str) -> dict[str, Value]:
    start = f"{prefix}."
    return {k.removeprefix(start): v for k, v in metadata.items() if k.startswith(start)}


def _require_understood(
    header: GgufHeader, record: Architecture, metadata: Mapping[str, Value]
) -> None:
    """Refuse what would give another model if it were left out."""
    assert record.gguf is not None
    for key in _NEEDED:
        if key not in metadata:
            raise UserError(f"{header.file} has no {record.gguf.name}.{key}", DOWNLOAD_AGAIN)
    only: dict[str, tuple[object, ...]] = {k: (v,) for k, v in record.gguf.only.items()}
    for key, usual in (dict(_NEUTRAL) | only).items():
        if key in metadata and metadata[key] not in usual:
            raise UserError(
                f"{header.file} has {record.gguf.name}.{key} = {metadata[key]!r:.100}, which is "
                f"not supported",
                ORIGINAL,
            )
    rotated, head = metadata.get("rope.dimension_count"), metadata.get("attention.key_length")
    if None not in (rotated, head) and rotated != head:
        raise UserError(
            f"{header.file} turns {rotated!r:.100} of a head's {head!r:.100} dimensions by RoPE, "
            "which is not supported",
            ORIGINAL,
        )


def _fields(header: GgufHeader, name: str, metadata: Mapping[str, Value]) -> dict[str, Any]:
    """The config's fields that the file has."""
    from transformers.integrations import ggml

    table: dict[str, dict[str, str | None]] = ggml.GGUF_CONFIG_MAPPING  # type: ignore[assignment]
    own = table[name] | _MORE_NAMES
    fields: dict[str, Any] = {}
    fields |= {found: value for key, value in metadata.items() if (found := own.get(key))}
    tokens = _without_prefix(header.metadata, "tokenizer")
    names = table["tokenizer"]
    fields |= {found: value for key, value in tokens.items() if (found := names.get(key))}
    embedding, vocabulary = header.tensors.get("token_embd.weight"), tokens.get("ggml.tokens")
    if isinstance(vocabulary, Listed):
        fields.setdefault("vocab_size", vocabulary.length)
    elif embedding:
        fields.setdefault("vocab_size", embedding.shape[0])
    fields["tie_word_embeddings"] = "output.weight" not in header.tensors
    return fields


def _rope_scaling(metadata: Mapping[str, Value]) -> dict[str, Any]:
    kind = metadata.get("rope.scaling.type", "none")
    if kind == "none":
        return {}
    if kind not in _SCALINGS:
        raise UserError(
            f"RoPE is scaled as '{kind!s:.100}'",
            f"these are read of a GGUF file: {', '.join(_SCALINGS)}. Else {ORIGINAL}",
        )
    scaling = {"rope_type": kind, "factor": metadata.get("rope.scaling.factor")}
    if "rope.scaling.original_context_length" in metadata and kind == "yarn":
        original = metadata["rope.scaling.original_context_length"]
        scaling["original_max_position_embeddings"] = original
    return scaling


_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LLAMA3_TRAINED = 8192
"""All models of Llama 3.1 and later have these."""


def llama3_scaling(factors: NDArray[np.float32], theta: float) -> dict[str, Any]:
    """The scaling that gives these factors. Raises UserError if it is not Llama 3's."""
    pairs, factor = len(factors), float(factors.max())
    frequencies = theta ** -(np.arange(pairs) / pairs)
    turns = _LLAMA3_TRAINED * frequencies / (2 * np.pi)
    low, high = _LLAMA3.values()
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    expected = 1 / ((1 - smooth) / factor + smooth)
    if not np.allclose(factors, expected, rtol=1e-4):
        raise UserError("its rope_freqs are not those of a Llama 3 model", ORIGINAL)
    return {
        "rope_type": "llama3",
        "factor": factor,
        **_LLAMA3,
        "original_max_position_embeddings": _LLAMA3_TRAINED,
    }
