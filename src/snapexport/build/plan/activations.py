"""Bounds the bytes of activations, from the tensors' shapes.

The factors for ONNX Runtime are fitted to measured runs (docs/reference/memory-model.md). Those for
a GPU are not measured: only TensorRT's builder knows what its layers take.
"""

from snapexport.build import BuildOptions
from snapexport.build.plan.model import PlannedModel
from snapexport.build.plan.sizes import largest_dequantized_bytes, position_bytes
from snapexport.contract.geometry import VOTING_ROWS, CacheGeometry
from snapexport.contract.targets import LARGEST_PLUGIN_HEAD, SINK_CHANNELS, capabilities
from snapexport.files.dtypes import BY_FLAG

_FP32 = 4

_ARENA = 2
"""ONNX Runtime allocates tensor by tensor in a graph's first run, and one block in later runs. Its
arena keeps the memory of the first run."""

_VOTE_COPIES = 3
"""Copies of the vote's scores alive at the same time: products, masked and softmax."""

_COMPOSED_COPIES = 2
"""Copies of scores that are soft-capped, or composed beside a sink: before and after."""


def layer_bytes(model: PlannedModel, options: BuildOptions, rows: int) -> int:
    """Bytes of a layer's tensors, for `rows` tokens, that can be alive at the same time.

    Four of [rows,I] (gate, up and their products), five of [rows,E] (residual, normed), three of
    [rows,H*D] (queries before and after RoPE, attended), four of [rows,Hkv*D].
    """
    facts = model.facts
    queries = facts.num_attention_heads * facts.head_dim
    states = facts.num_key_value_heads * facts.head_dim
    width = 4 * model.intermediate_size + 5 * model.hidden_size + 3 * queries + 4 * states
    return rows * width * _working_bytes(options)


def scores_bytes(model: PlannedModel, rows: int, slots: int) -> int:
    """Bytes of attention's scores, where they are formed: [H,rows,slots] in fp32."""
    return model.facts.num_attention_heads * rows * slots * _FP32


def forms_scores(model: PlannedModel, options: BuildOptions, single_shot: bool) -> bool:
    """Whether prefill's attention holds a layer's scores at once.

    No target has a fused kernel for soft-capped scores, nor for latent attention; the compiled ones
    have none in a model with experts.
    """
    target = capabilities(options.target)
    is_fused = options.dtype in target.fused_attention
    if single_shot and not target.fused_whole_prompt:
        is_fused = False
    if target.fused_shapes is not None and model.facts.num_experts:
        is_fused = False
    is_fused &= model.facts.latent is None
    return model.softcapped or not is_fused


def prefill_bytes(
    model: PlannedModel, options: BuildOptions, geometry: CacheGeometry, chunk: int
) -> int:
    """Bytes of a prefill step of `chunk` tokens over L_max positions, with its outputs."""
    single_shot = geometry.is_single_shot(chunk)
    slots = geometry.L_max
    taken = layer_bytes(model, options, chunk) * _arena(options)
    if forms_scores(model, options, single_shot):
        facts = model.facts
        composed = model.softcapped or facts.attention_sinks or facts.latent is not None
        copies = _COMPOSED_COPIES if composed else 1
        taken += copies * scores_bytes(model, chunk, slots)
    taken += _expanded_bytes(model, options, chunk, slots) + _dequantized_bytes(model, options)
    if _is_masked(model, options, single_shot):
        taken += chunk * slots  # bool [1,1,C,T], shared by the layers
    if capabilities(options.target).fused_shapes and not single_shot:
        taken += _attention_scratch(model, options, chunk, slots)
    if single_shot:
        taken += compress_bytes(model, options, geometry)
    return taken + _outputs_bytes(model, options, geometry)


def _expanded_bytes(model: PlannedModel, options: BuildOptions, chunk: int, slots: int) -> int:
    """Bytes of the keys and values of all heads, where a chunk expands latents."""
    latent = model.facts.latent
    if latent is None or not latent.expands(chunk):
        return 0
    width = latent.nope + latent.value
    return model.facts.num_attention_heads * slots * width * _working_bytes(options)


def _attention_scratch(model: PlannedModel, options: BuildOptions, chunk: int, slots: int) -> int:
    """Bytes of a fused kernel's copies: a layer's keys and values, and the mask in 16 bits.

    Beside sinks the kernel reads copies with more channels. Measured with the builder of TensorRT
    for RTX 1.7 (docs/how-to/tensorrt.md).
    """
    facts = model.facts
    states = slots * position_bytes(facts, options.dtype)
    if facts.attention_sinks:
        wide = states * (facts.head_dim + SINK_CHANNELS) // facts.head_dim
        states = 2 * wide
    return states + 2 * chunk * slots


def compress_bytes(model: PlannedModel, options: BuildOptions, geometry: CacheGeometry) -> int:
    """Bytes of the compress step of one layer: its vote, and a conversion to fewer bits.

    The vote holds copies of the window's scores [H,W,T] in fp32 and of the keys [Hkv,T,D]. A plugin
    holds votes [H,T] instead (docs/how-to/plugins.md).
    """
    target = capabilities(options.target)
    rounding = _rounding_bytes(model, options, geometry)
    if not any(layer.K for layer in geometry.layers):
        return rounding * _ARENA
    if target.plugins and model.facts.head_dim <= LARGEST_PLUGIN_HEAD:
        return scores_bytes(model, 1, geometry.L_max)
    queries = min(geometry.L_obs, VOTING_ROWS) if geometry.repeats else geometry.L_obs
    votes = _VOTE_COPIES * scores_bytes(model, queries, geometry.L_max)
    facts = model.facts
    keys = facts.num_key_value_heads * geometry.L_max * facts.head_dim * _working_bytes(options)
    return (votes + target.vote_key_copies * keys + rounding) * _ARENA


def _rounding_bytes(model: PlannedModel, options: BuildOptions, geometry: CacheGeometry) -> int:
    """Bytes of the compressed keys and values in fp32, 2 x [Hkv,S,D].

    int8: twice that while they are rounded; and for their scale a copy of the prompt's keys or
    values, [Hkv,T,D], and its squares. Not measured.
    """
    if options.stored_cache_dtype == options.dtype:
        return 0
    position = position_bytes(model.facts, "fp32")
    kept = max(layer.cache_slots for layer in geometry.layers) * position
    if options.stored_cache_dtype == "fp16":
        return kept
    return 2 * kept + geometry.L_max * position


def decode_bytes(model: PlannedModel, options: BuildOptions, geometry: CacheGeometry) -> int:
    """Bytes of a decode step: a row and scores for each token, logits [B,V] or [B,C,V]."""
    tokens = options.batch * options.tokens_per_step
    widest = max(layer.cache_slots for layer in geometry.layers)
    rows = layer_bytes(model, options, tokens) + scores_bytes(model, tokens, widest)
    logits = 2 * tokens * model.facts.vocab_size * _FP32
    return rows * _arena(options) + logits + _dequantized_bytes(model, options)


def _dequantized_bytes(model: PlannedModel, options: BuildOptions) -> int:
    """Bytes of what is dequantized at a time where weights stay in fp8."""
    if options.weights != "fp8":
        return 0
    return largest_dequantized_bytes(model, BY_FLAG[options.dtype].bytes)


def _outputs_bytes(model: PlannedModel, options: BuildOptions, geometry: CacheGeometry) -> int:
    """Bytes of logits [1,V], and for compressed caches of query windows and kept positions."""
    facts = model.facts
    logits = facts.vocab_size * _FP32
    if not geometry.compresses:
        return logits
    window = (
        facts.num_attention_heads * geometry.L_obs * facts.head_dim * BY_FLAG[options.dtype].bytes
    )
    held = zip(geometry.heads_held(facts.num_key_value_heads), geometry.layers, strict=True)
    positions = 8 * sum(heads * layer.K for heads, layer in held)
    voting = sum(layer.K > 0 for layer in geometry.layers) if geometry.repeats else 0
    votes = 2 * voting * facts.num_key_value_heads * geometry.L_max * _FP32  # before and after
    return logits + geometry.model_layers * window + positions + votes


def _is_masked(model: PlannedModel, options: BuildOptions, single_shot: bool) -> bool:
    """Whether prefill's attention has an explicit mask."""
    reasons = {
        "chunk": not single_shot,
        "window": any(model.facts.sliding_window),
        "softcap": model.softcapped,
        "sink": model.facts.attention_sinks,
    }
    return any(reasons[one] for one in capabilities(options.target).masks)


def _working_bytes(options: BuildOptions) -> int:
    """Bytes of an element in work. The CPU provider adds an fp32 copy to each fp16 tensor."""
    item = BY_FLAG[options.dtype].bytes
    converts = not capabilities(options.target).runs_on_gpu and item < _FP32
    return item + _FP32 if converts else item


def _arena(options: BuildOptions) -> int:
    return 1 if capabilities(options.target).runs_on_gpu else _ARENA
