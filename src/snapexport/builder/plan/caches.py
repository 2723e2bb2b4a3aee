"""Bytes of the caches that stay allocated while a build runs."""

from snapexport.contract.bytes import DTYPE_BYTES
from snapexport.contract.cache_form import CacheDType
from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.manifest import DType, ModelFacts


def position_bytes(model: ModelFacts, dtype: CacheDType) -> int:
    """Key and value of one position in one layer: 2 x [Hkv,D]."""
    return 2 * model.num_key_value_heads * model.head_dim * DTYPE_BYTES[dtype]


def token_bytes(model: ModelFacts, dtype: DType) -> int:
    """What a token takes in the full cache: a position in every layer."""
    return model.num_hidden_layers * position_bytes(model, dtype)


def slot_bytes(model: ModelFacts, geometry: CacheGeometry, dtype: CacheDType) -> int:
    """Decode's cache of one request: [Hkv,S_l,D] twice in each layer, S_l by its geometry.

    And for int8 its scales, [Hkv,1,D] in fp32 beside each of them.
    """
    states = sum(layer.cache_slots for layer in geometry.layers) * position_bytes(model, dtype)
    return states + (token_bytes(model, "fp32") if dtype == "int8" else 0)


def prompt_bytes(model: ModelFacts, geometry: CacheGeometry, chunk: int, dtype: DType) -> int:
    """The full-length cache of the prompt in prefill: [1,Hkv,T,D] twice in each layer.

    None where the prompt is prefilled in a single shot: one layer's is alive at a time.
    """
    if geometry.is_single_shot(chunk):
        return 0
    return geometry.L_max * token_bytes(model, dtype)
