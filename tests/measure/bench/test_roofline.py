"""Spreads of samples, rooflines, and the counted work behind a roofline."""

import math
from itertools import product
from pathlib import Path

import onnx
import pytest

from snapexport.contract.build_directory import Build
from snapexport.contract.memory import cache_bytes
from snapexport.contract.slots import LayerGeometry
from snapexport.files.safetensors import TensorSpan
from snapexport.measure.bench.costs import Costs, LayerCosts, Weights
from snapexport.measure.bench.turns import Rates, Work, spread


def test_a_spread_has_quartiles_whatever_the_order_of_values() -> None:
    assert spread([5, 1, 4, 2, 3]) == {
        "samples": 5,
        "min": 1,
        "q1": 2,
        "median": 3,
        "q3": 4,
        "max": 5,
    }
    assert set(spread([7.0]).values()) == {1, 7.0}
    assert spread([1 / 3])["median"] == 0.333333


def test_a_roofline_is_the_longer_of_memory_and_compute_time() -> None:
    rates = Rates(nbytes=100, operations=1000)
    assert rates.roofline(Work(50, 100)) == (0.5, "memory")
    assert rates.roofline(Work(50, 2000)) == (2, "compute")
    assert Rates(nbytes=100).roofline(Work(50, 10**9)) == (0.5, "memory")


def span(nbytes: int, *shape: int) -> TensorSpan:
    return TensorSpan(Path(), 0, nbytes, "F32", shape)


TIED = {
    "model.embed_tokens.weight": span(160, 10, 4),
    "model.layers.0.mlp.up_proj.weight": span(96, 6, 4),
    "model.norm.weight": span(16, 4),
}


def packed(name: str, rows: int, columns: int) -> dict[str, TensorSpan]:
    blocks = columns // 32
    return {
        f"{name}.int4": span(rows * blocks * 16, rows, blocks, 16),
        f"{name}.scales": span(4 * rows * blocks, rows, blocks),
    }


def test_a_tied_embedding_is_the_output_matrix() -> None:
    assert Weights.count(TIED) == Weights(nbytes=272, elements=64, output=40)


def test_an_embedding_beside_an_output_matrix_is_not_read() -> None:
    head = {"lm_head.weight": span(160, 10, 4)}
    assert Weights.count(TIED | head) == Weights(nbytes=272, elements=64, output=40)


def test_packed_weights_have_two_elements_a_byte_and_replace_the_original() -> None:
    found = Weights.count(TIED | packed("model.layers.0.mlp.up_proj.weight", 6, 64))
    assert found == Weights(160 + 16 + 6 * 32 + 6 * 2 * 4, 40 + 6 * 64, 40)
    head = Weights.count(TIED | packed("model.embed_tokens.weight", 10, 32))
    assert head == Weights(96 + 16 + 10 * 16 + 10 * 4, 24 + 320, 320)


def test_the_weights_of_a_build_are_those_that_its_decode_graph_reads(tiny_build: Build) -> None:
    model = onnx.load(tiny_build.graph("decode"), load_external_data=False)
    read = [one for one in model.graph.initializer if one.external_data]
    lengths = {one.name: int({e.key: e.value for e in one.external_data}["length"]) for one in read}
    embedding = next(name for name in lengths if name.endswith("embed_tokens.weight"))
    matrices = [math.prod(one.dims) for one in read if len(one.dims) > 1 and one.name != embedding]
    found = Weights.of(tiny_build)
    assert found.nbytes == sum(lengths.values()) - lengths[embedding]
    assert found.elements == sum(matrices)
    assert found.output == 257 * 64


def test_layer_costs_count_the_bytes_of_the_caches(tiny_build: Build) -> None:
    cache, batch = cache_bytes(tiny_build.manifest), tiny_build.manifest.batch
    for full_cache, expected in ((False, cache.decode), (True, cache.full)):
        layers = Costs.of(tiny_build, full_cache=full_cache).layers
        slots = [layer.slot * layer.geometry.cache_slots + layer.fixed for layer in layers]
        assert batch * sum(slots) == expected


@pytest.mark.parametrize(("length", "window"), list(product((1, 2, 5, 9), (0, 1, 3, 9, 20))))
def test_attention_pairs_of_a_prompt_equal_a_count_one_by_one(length: int, window: int) -> None:
    layer = LayerCosts(LayerGeometry(100, 0, 0), 1, 1, 2, 1, window)
    seen = [min(p + 1, window) if window else p + 1 for p in range(length)]
    assert layer.pairs(length) == sum(seen)


WEIGHTS = Weights(nbytes=1000, elements=200, output=50)
SNAPSTREAM = LayerCosts(LayerGeometry(2, 6, 4), key=8, value=8, slot=16, pair=16, window=0)
SLIDING = LayerCosts(LayerGeometry(0, 5, 0), key=8, value=8, slot=16, pair=16, window=5)
FULL = LayerCosts(LayerGeometry(100, 0, 0), key=8, value=8, slot=16, pair=16, window=0)


def test_a_decode_step_reads_weights_once_and_each_requests_valid_slots() -> None:
    costs = Costs(WEIGHTS, (SNAPSTREAM, SLIDING), L_obs=3)
    # Behind 10 tokens, all of which 12 slots hold; a window of 5.
    alone = costs.decode(position=10, active=1)
    assert alone == Work(1000 + 16 * (11 + 1) + 16 * (5 + 1), 400 + 16 * (11 + 5))
    three = costs.decode(position=10, active=3)
    assert three == Work(1000 + 3 * (alone.nbytes - 1000), 3 * alone.operations)


def test_compressed_decode_reads_the_same_bytes_at_any_context_and_full_decode_more() -> None:
    compressed, full = (Costs(WEIGHTS, (layer,), L_obs=3) for layer in (SNAPSTREAM, FULL))
    assert compressed.decode(20, 1) == compressed.decode(90, 1)
    grown = full.decode(90, 1).nbytes - full.decode(20, 1).nbytes
    assert grown == 16 * 70


def test_prefill_multiplies_the_output_matrix_once() -> None:
    costs = Costs(WEIGHTS, (FULL,), L_obs=3)
    assert costs.prefill(4) == Work(1000 + 16 * 4, 2 * (4 * 150 + 50) + 16 * 10)


def test_a_compress_step_reads_eligible_keys_and_moves_what_stays() -> None:
    costs = Costs(WEIGHTS, (SNAPSTREAM, SLIDING), L_obs=3)
    # Of 20 tokens 12 are eligible; 12 slots and 5 slots are filled.
    assert costs.compress(20) == Work(8 * 12 + 2 * 16 * (12 + 5), 3 * 8 * 12)


def test_pairs_of_chunks_equal_a_count_of_them() -> None:
    costs = LayerCosts(LayerGeometry(0, 5, 0, chunk=5), 1, 1, 2, 1, window=0, chunk=5)
    for length in range(1, 23):
        assert costs.pairs(length) == sum(row % 5 + 1 for row in range(length))
        assert costs.attended_slots(length) == length % 5 + 1
