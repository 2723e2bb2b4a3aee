"""Bytes of weights and caches: as a build stores them, and as they are held while it runs."""

from math import ceil

from snapexport.builder import BuildOptions
from snapexport.builder.plan.model import PlannedModel
from snapexport.contract.bytes import DTYPE_BYTES
from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.manifest import ModelFacts
from snapexport.contract.targets import CacheDType, DType, capabilities

_BLOCK, _PACKED = 32, 16
"""int4: bytes of a block of 32 weights, beside its scale (exporter.int4)."""


def stored_bytes(model: PlannedModel, options: BuildOptions) -> int:
    """One copy of all weights, in the build's dtype; a tied head is no second copy."""
    item = DTYPE_BYTES[options.dtype]
    plain = (model.embedding + model.others) * item
    if options.weights:
        return plain + _int4_bytes(model, item)
    return plain + (_linear_elements(model) - model.embedding * model.tied) * item


def held_bytes(model: PlannedModel, options: BuildOptions) -> int:
    """Weights while the build runs.

    A target with weights_per_graph holds a copy for each graph that multiplies: prefill and every
    decode. Elsewhere all sessions map one copy of fp32 weights from the file. int4: each session
    rearranges the linear layers into a copy of its own beside the mapped file. fp16: the CPU
    provider multiplies in fp32 alone, so that every session keeps an fp32 copy and lets the mapped
    file go (docs/measurements.md).
    """
    stored, sessions = stored_bytes(model, options), sessions_with_weights(options)
    if capabilities(options.target).weights_per_graph:
        return stored * sessions
    if options.weights:
        return stored + sessions * _int4_bytes(model, DTYPE_BYTES[options.dtype])
    if options.dtype == "fp16":
        return sessions * stored // DTYPE_BYTES["fp16"] * DTYPE_BYTES["fp32"]
    return stored


def read_bytes(model: PlannedModel, options: BuildOptions) -> int:
    """Weights that a decode step reads: all but the embedding, of which it reads a row a slot."""
    if options.weights:
        return _int4_bytes(model, DTYPE_BYTES[options.dtype])
    converted = not capabilities(options.target).runs_on_gpu and options.dtype == "fp16"
    item = DTYPE_BYTES["fp32" if converted else options.dtype]
    return (_linear_elements(model) + model.others) * item


def sessions_with_weights(options: BuildOptions) -> int:
    """Prefill's graph and the decode graphs: one for all batch slots, and those for fewer."""
    return 2 + len(options.smaller_batches)


def _linear_elements(model: PlannedModel) -> int:
    return sum(rows * columns for rows, columns in model.linear)


def _int4_bytes(model: PlannedModel, item: int) -> int:
    """Blocks of 32 along K, and their scales."""
    blocks = sum(rows * ceil(columns / _BLOCK) for rows, columns in model.linear)
    return blocks * (_PACKED + item)


def position_bytes(model: ModelFacts, dtype: CacheDType) -> int:
    """Key and value of one position in one layer: 2 x [Hkv,D]."""
    return 2 * model.num_key_value_heads * model.head_dim * DTYPE_BYTES[dtype]


def token_bytes(model: ModelFacts, dtype: DType) -> int:
    """A token in the full cache: a position in every layer."""
    return model.num_hidden_layers * position_bytes(model, dtype)


def request_bytes(model: ModelFacts, geometry: CacheGeometry, dtype: CacheDType) -> int:
    """Decode's cache of one request: [Hkv,S_l,D] twice in each layer, S_l by its geometry.

    int8 adds its scales, [Hkv,1,D] in fp32 beside each of them.
    """
    states = sum(layer.cache_slots for layer in geometry.layers) * position_bytes(model, dtype)
    return states + (token_bytes(model, "fp32") if dtype == "int8" else 0)


def prompt_bytes(model: ModelFacts, geometry: CacheGeometry, chunk: int, dtype: DType) -> int:
    """The full-length cache of the prompt in prefill: [1,Hkv,T,D] twice in each layer.

    0 where the prompt is prefilled in a single shot: one layer's is alive at a time.
    """
    if geometry.is_single_shot(chunk):
        return 0
    return geometry.L_max * token_bytes(model, dtype)
