"""Says which tensors int8 caches add, and what excludes them."""

from dataclasses import replace

from snapexport.contract import names
from snapexport.contract.graph_options import GraphOptions
from snapexport.contract.graph_specs import GraphFacts, Specs, Tensors, after
from snapexport.contract.rule import LATENT, LEAVE_OUT, WIDTHS, Rule, not_in_genai, value
from snapexport.contract.targets import Target
from snapexport.files.dtypes import DType
from snapexport.methods.method import Method

DTYPE = "int8"

past_key_scale = names.numbered("past_key_values.", ".key_scale")
"""Scale of int8 keys, float32 [B,Hkv,1,D]: key = int8 * scale."""
past_value_scale = names.numbered("past_key_values.", ".value_scale")
"""Scale of int8 values, float32 [B,Hkv,1,D]."""
present_key_scale = names.numbered("present.", ".key_scale")
"""`past_key_scale` after the step, unchanged."""
present_value_scale = names.numbered("present.", ".value_scale")
"""`past_value_scale` after the step, unchanged."""


def tensors(facts: GraphFacts, kind: str, common: Tensors) -> Tensors:
    """The scales beside compressed caches: where these are inputs, and where they are outputs."""
    scales: Specs = {}
    for cache, kv_heads, _, layer in facts.held:
        held = common[1].get(names.present_key(cache))
        if held and held[0] == DTYPE:
            for name, width in zip(
                (past_key_scale(cache), past_value_scale(cache)), layer.widths, strict=True
            ):
                scales[name] = ("float32", (held[1][0], kv_heads, 1, width))
    is_input = any(names.is_past(name) and spec[0] == DTYPE for name, spec in common[0].items())
    return scales if is_input else {}, after(scales)


def resolve(options: GraphOptions, target: Target, dtype: DType) -> GraphOptions:
    """Int8 caches are read only at valid slots."""
    if options.cache_dtype == DTYPE and options.decode_attention is None:
        return replace(options, decode_attention="valid")
    return options


_CHOICE = value("cache_dtype", DTYPE)
_RULES = (
    Rule(
        _CHOICE,
        value("decode_attention", "all"),
        "int8 caches are read only at valid slots",
        "drop --decode-attention all",
    ),
    Rule(
        _CHOICE,
        LATENT,
        "a cache of latents is small already",
        "leave it out, or use --cache-dtype fp16",
    ),
    Rule(_CHOICE, WIDTHS, "ONNX Runtime's operator for valid slots takes none", LEAVE_OUT),
)

INT8_CACHE = Method(
    name="int8_cache",
    home=__package__,
    parts=("surgery",),
    is_on=lambda geometry, options: options.cache_dtype == DTYPE,
    stores=DTYPE,
    rules=_RULES,
    run_rules=(not_in_genai(_CHOICE),),
    resolve=resolve,
    tensors=tensors,
)
