"""The keys of a GGUF file's metadata: what they are called in a config, and which are refused.

transformers has a table of names, and drops what it lacks. A key that matters must not be dropped.
"""

from collections.abc import Mapping

from snapexport.errors import UserError
from snapexport.exporter.architectures import InGguf
from snapexport.exporter.gguf.cursor import Value
from snapexport.exporter.gguf.header import DOWNLOAD_AGAIN, GgufHeader

ORIGINAL = "start from the original checkpoint, in safetensors"
TOKENIZER = "tokenizer"
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
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
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
"""Keys that tensors' shapes tell anyway, or that say where the model is from."""


def own_metadata(header: GgufHeader, prefix: str) -> dict[str, Value]:
    """The metadata under a prefix, without it."""
    start = f"{prefix}."
    return {k.removeprefix(start): v for k, v in header.metadata.items() if k.startswith(start)}


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
    usual = dict(_NEUTRAL) | {key: (value,) for key, value in form.only.items()}
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
