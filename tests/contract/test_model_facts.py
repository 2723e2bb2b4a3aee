"""Facts of a model whose layers differ in their heads."""

import json

import pytest
from pydantic import ValidationError

from snapexport.contract.model_facts import LayerHeads, ModelFacts
from snapexport.contract.slots import folded
from tests.facts import model_facts

UNEVEN = model_facts(
    3,
    num_key_value_heads=(2, 2, 1),
    head_dim=(16, 16, 32),
    value_head_dim=(16, 16, 24),
    attention_sinks=(True, False, False),
    sliding_window=[8, 8, 0],
    cache_of=(0, 0, 2),
)


def test_each_layer_has_its_own_heads() -> None:
    sliding, _, full = UNEVEN.layers
    assert sliding == LayerHeads(4, 2, 16, 16, 16, sinks=True, window=8, chunk=0, cache_of=0)
    assert full == LayerHeads(4, 1, 32, 32, 24, sinks=False, window=0, chunk=0, cache_of=2)


def test_a_shared_cache_counts_once() -> None:
    assert UNEVEN.position_values == 2 * (16 + 16) + 1 * (32 + 24)


def test_uneven_facts_survive_a_manifest() -> None:
    assert ModelFacts.model_validate_json(UNEVEN.model_dump_json()) == UNEVEN


def test_facts_of_even_layers_have_no_further_keys() -> None:
    found = json.loads(model_facts(2).model_dump_json())
    assert {"value_head_dim", "cache_of"}.isdisjoint(found)
    assert (found["num_key_value_heads"], found["attention_sinks"]) == (2, False)


def test_the_table_of_exclusions_knows_how_layers_differ() -> None:
    assert not any(model_facts(2).features.values())
    true = ("uneven_heads", "unequal_widths", "shared_caches", "unfused_widths", "irregular")
    assert [name for name, holds in UNEVEN.features.items() if holds] == [*true]


def test_latents_are_keys_and_values_of_different_widths_by_nature() -> None:
    facts = model_facts(1, head_dim=40, kv_lora_rank=32, qk_nope_head_dim=16, v_head_dim=12)
    assert facts.layer(0).widths == (32, 8)
    assert facts.features == dict.fromkeys(facts.features, False) | {"latent": True}


def test_a_column_of_another_length_is_refused() -> None:
    with pytest.raises(ValidationError, match="head_dim has 2 values for 3 layers"):
        model_facts(3, head_dim=(16, 32))


def test_equal_values_are_folded_into_one() -> None:
    assert folded([4, 4]) == 4
    assert folded([4, 2]) == (4, 2)
