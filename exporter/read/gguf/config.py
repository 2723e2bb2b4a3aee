"""Makes transformers' config of a GGUF file's metadata, by transformers' own table of names.

transformers drops the keys that its table lacks. A key that matters must not be dropped: each is
applied, changes nothing, or is refused.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from snapexport.errors import UserError
from snapexport.exporter.quiet import quiet
from snapexport.exporter.read.config_fields import require_ranges
from snapexport.exporter.read.families import HELD, Family, InGguf
from snapexport.exporter.read.gguf.header import (
    DOWNLOAD_AGAIN,
    ORIGINAL,
    TOKENIZER,
    GgufHeader,
    Listed,
    Value,
    own_metadata,
)

if TYPE_CHECKING:
    from transformers import PretrainedConfig

SCALING = "rope.scaling"
_NEEDED = (
    "context_length",
    "block_count",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.layer_norm_rms_epsilon",
)
_MORE_NAMES: dict[str, str | None] = {
    "attention.key_length": "head_dim",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
"""Keys that transformers leaves out for some architectures."""
_USUAL: Mapping[str, tuple[object, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "attention.scale": (0.0,),
    "embedding_scale": (1.0,),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "logit_scale": (1.0,),
    "residual_scale": (1.0,),
    "rope.scale_linear": (1.0,),
    "rope.scaling.attn_factor": (1.0,),
}
"""Keys that no config has, and the values that change nothing."""
_READ = tuple(f"{SCALING}.{key}" for key in ("type", "factor", "original_context_length"))
_WITHOUT_MEANING = ("attention.value_length", "rope.scaling.finetuned", "tensor_data_layout")
"""Keys that tensors' shapes show anyway, or that say where the model is from."""


def config_names(prefix: str) -> dict[str, str | None]:
    """{key without its prefix: the config's name for it, None: it has none}."""
    from transformers.integrations import ggml

    tables: dict[str, dict[str, str | None]] = ggml.GGUF_CONFIG_MAPPING  # type: ignore[assignment]
    return tables[prefix] | ({} if prefix == TOKENIZER else _MORE_NAMES)


def require_understood(header: GgufHeader, form: InGguf) -> None:
    """Raise UserError for a key that is missing, not known, or of a value that isn't supported."""
    metadata = own_metadata(header, form.name)
    for key in _NEEDED:
        if key not in metadata:
            raise UserError(f"{header.file} has no {form.name}.{key}", DOWNLOAD_AGAIN)
    usual = dict(_USUAL) | {key: (value,) for key, value in form.only.items()}
    known = {*config_names(form.name), *usual, *_READ, *_WITHOUT_MEANING}
    for key, value in metadata.items():
        where = f"{header.file} has {form.name}.{key[:100]}"
        if key not in known:
            raise UserError(f"{where}, which is not known", ORIGINAL)
        if key in usual and value not in usual[key]:
            raise UserError(f"{where} = {value!r:.100}, which is not supported", ORIGINAL)
    _require_whole_heads(header, metadata)


def _require_whole_heads(header: GgufHeader, metadata: Mapping[str, Value]) -> None:
    rotated, head = metadata.get("rope.dimension_count"), metadata.get("attention.key_length")
    if None not in (rotated, head) and rotated != head:
        raise UserError(
            f"{header.file} turns {rotated!r:.100} of a head's {head!r:.100} dimensions by RoPE, "
            "which is not supported",
            ORIGINAL,
        )


_KINDS = ("linear", "yarn")
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LLAMA3_TRAINED = 8192
"""All models of Llama 3.1 and later have these."""


def rope_scaling(metadata: Mapping[str, Value]) -> dict[str, Any]:
    """transformers' fields, of the metadata without its prefix; empty: not scaled."""
    kind = metadata.get(f"{SCALING}.type", "none")
    if kind == "none":
        return {}
    if kind not in _KINDS:
        raise UserError(
            f"RoPE is scaled as '{kind!s:.100}'",
            f"these are read of a GGUF file: {', '.join(_KINDS)}. Else {ORIGINAL}",
        )
    scaling = {"rope_type": kind, "factor": metadata.get(f"{SCALING}.factor")}
    original = metadata.get(f"{SCALING}.original_context_length")
    if original is not None and kind == "yarn":
        scaling["original_max_position_embeddings"] = original
    return scaling


def llama3_scaling(factors: NDArray[np.float32], theta: float) -> dict[str, Any]:
    """The scaling that divides each pair's frequency by its factor. Raises UserError."""
    factor = float(factors.max())
    frequencies = theta ** -(np.arange(len(factors)) / len(factors))
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


def require_single(header: GgufHeader, entries: Mapping[str, Value], names: Iterable[str]) -> None:
    """Raise UserError for a key of these with a list in the place of one value."""
    for key in names:
        if isinstance(entries.get(key), Listed):
            raise UserError(
                f"{header.file} has a list as {key}, which is not supported", DOWNLOAD_AGAIN
            )


def _fields(header: GgufHeader, name: str) -> dict[str, Any]:
    """The config's fields that the file has."""
    fields: dict[str, Any] = {}
    for prefix in (name, TOKENIZER):
        names = config_names(prefix)
        entries = own_metadata(header, prefix)
        require_single(header, entries, names)
        fields |= {found: value for key, value in entries.items() if (found := names.get(key))}
    tokens = header.metadata.get(f"{TOKENIZER}.ggml.tokens")
    embedding = header.tensors.get("token_embd.weight")
    if isinstance(tokens, Listed):
        fields.setdefault("vocab_size", tokens.length)
    elif embedding:
        fields.setdefault("vocab_size", embedding.shape[0])
    fields["tie_word_embeddings"] = "output.weight" not in header.tensors
    return fields
