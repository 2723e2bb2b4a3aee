"""Bytes that the graphs work with beside weights and caches: bounds from the tensors' shapes.

The factors for ONNX Runtime are fitted to measured runs (docs/plan.md); TensorRT's builder knows
alone what its layers take, and those for tensorrt are bounds that nobody has measured.
"""

from snapexport.builder import BuildOptions
from snapexport.builder.plan.caches import position_bytes
from snapexport.builder.plan.model import PlannedModel
from snapexport.contract.bytes import DTYPE_BYTES
from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.manifest import Target

_FP32 = 4

_ARENA = 2
"""ONNX Runtime allocates tensor by tensor in a graph's first run and lays all of them out in one
piece for the later ones; what the first run took stays in its arena."""

_VOTE_COPIES = 3
"""Scores of the vote that are alive side by side: products, masked and softmax."""

_KEY_COPIES: dict[Target, int] = {"onnxruntime": 2, "portable": 1}
"""Keys of the vote: transposed, and for onnxruntime cut at the prompt's end before that."""

_SOFTCAP_COPIES = 2
"""Of attention's scores where they are soft-capped: before and after."""


def layer_bytes(model: PlannedModel, options: BuildOptions, rows: int) -> int:
    """The tensors of a layer for `rows` tokens that can be alive at a time.

    Four of [rows,I] (gate, up and their products), five of [rows,E] (residual, normed), three of
    [rows,H*D] (queries before and after RoPE, attended), four of [rows,Hkv*D].
    """
    facts = model.facts
    queries = facts.num_attention_heads * facts.head_dim
    states = facts.num_key_value_heads * facts.head_dim
    width = 4 * model.intermediate_size + 5 * model.hidden_size + 3 * queries + 4 * states
    return rows * width * _working_bytes(options)


def scores_bytes(model: PlannedModel, rows: int, slots: int) -> int:
    """Attention's scores where they are formed: [H,rows,slots] in fp32."""
    return model.facts.num_attention_heads * rows * slots * _FP32


def forms_scores(model: PlannedModel, options: BuildOptions, single_shot: bool) -> bool:
    """Whether prefill's attention holds a layer's scores at once.

    portable: Attention of opset 24 does. onnxruntime: GroupQueryAttention goes block by block, but
    not over fp16, a softcap, or a prompt without a cache (single shot). tensorrt: one fused kernel,
    unless it was allowed to take several, or the scores are soft-capped.
    """
    if options.target == "portable" or model.softcapped:
        return True
    if options.target == "tensorrt":
        return options.trt_decomposable
    return options.dtype != "fp32" or single_shot


def prefill_bytes(
    model: PlannedModel, options: BuildOptions, geometry: CacheGeometry, chunk: int
) -> int:
    """A prefill step of `chunk` tokens over a cache of L_max positions, and what it puts out."""
    single_shot = geometry.is_single_shot(chunk)
    slots = geometry.L_max
    taken = layer_bytes(model, options, chunk) * _arena(options)
    if forms_scores(model, options, single_shot):
        copies = _SOFTCAP_COPIES if model.softcapped else 1
        taken += copies * scores_bytes(model, chunk, slots)
    if _is_masked(model, options, single_shot):
        taken += chunk * slots  # bool [1,1,C,T], shared by the layers
    if single_shot:
        taken += compress_bytes(model, options, geometry)
    return taken + _outputs_bytes(model, options, geometry)


def compress_bytes(model: PlannedModel, options: BuildOptions, geometry: CacheGeometry) -> int:
    """The hand-over of one layer: its vote, and caches in fewer bits than they are calculated in.

    Scores of the window's queries [H,W,T] in fp32, and the keys [Hkv,T,D], in several copies each.
    On tensorrt the plugin holds a vote per query head and position instead, [H,T]
    (docs/plugins.md).
    """
    rounding = _rounding_bytes(model, options, geometry)
    if not any(layer.K for layer in geometry.layers):
        return rounding * _ARENA
    if options.target == "tensorrt":
        return scores_bytes(model, 1, geometry.L_max)
    votes = _VOTE_COPIES * scores_bytes(model, geometry.L_obs, geometry.L_max)
    facts = model.facts
    keys = facts.num_key_value_heads * geometry.L_max * facts.head_dim * _working_bytes(options)
    return (votes + _KEY_COPIES[options.target] * keys + rounding) * _ARENA


def _rounding_bytes(model: PlannedModel, options: BuildOptions, geometry: CacheGeometry) -> int:
    """What is kept in fp32, [Hkv,S,D] twice. int8: as much again while it is rounded, and for their
    scale a copy of the prompt's keys or values, [Hkv,T,D], and its squares. No run was measured.
    """
    if options.held_dtype == options.dtype:
        return 0
    position = position_bytes(model.facts, "fp32")
    kept = max(layer.cache_slots for layer in geometry.layers) * position
    if options.held_dtype == "fp16":
        return kept
    return 2 * kept + geometry.L_max * position


def decode_bytes(model: PlannedModel, options: BuildOptions, geometry: CacheGeometry) -> int:
    """A decode step of all the slots: a row each, scores over its slots, and logits [B,V]."""
    batch = options.batch
    widest = max(layer.cache_slots for layer in geometry.layers)
    rows = layer_bytes(model, options, batch) + scores_bytes(model, batch, widest)
    return rows * _arena(options) + 2 * batch * model.facts.vocab_size * _FP32


def _outputs_bytes(model: PlannedModel, options: BuildOptions, geometry: CacheGeometry) -> int:
    """Logits [1,V], and where a cache is compressed each layer's query window and positions."""
    facts = model.facts
    logits = facts.vocab_size * _FP32
    if not geometry.compresses:
        return logits
    window = (
        facts.num_attention_heads * geometry.L_obs * facts.head_dim * DTYPE_BYTES[options.dtype]
    )
    positions = facts.num_key_value_heads * sum(layer.K for layer in geometry.layers) * 8
    return logits + geometry.num_layers * window + positions


def _is_masked(model: PlannedModel, options: BuildOptions, single_shot: bool) -> bool:
    """Whether there is an explicit mask: of TensorRT's chunks, or for want of an operator."""
    windows = any(model.facts.sliding_window)
    if options.target == "tensorrt":
        return not single_shot or windows or model.softcapped
    return options.target == "portable" and windows


def _working_bytes(options: BuildOptions) -> int:
    """Of one element. The CPU provider keeps an fp32 copy beside each fp16 tensor it works with."""
    item = DTYPE_BYTES[options.dtype]
    converts = options.target != "tensorrt" and item < _FP32
    return item + _FP32 if converts else item


def _arena(options: BuildOptions) -> int:
    return 1 if options.target == "tensorrt" else _ARENA
