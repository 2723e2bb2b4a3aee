"""The object `geometry` of a manifest: flat keys in a fixed order, and back to a geometry."""

import json
from dataclasses import fields, replace

import pytest
from pydantic import TypeAdapter

from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.records import GeometryRecord, RecordedGeometry
from snapexport.errors import UserError

GROUPS = (((0, 1),), ((0,), (1,)))
RECORD = GeometryRecord(
    "snapstream", 64, 3, L_sink=4, L_recent=12, K=(8, 2, 14), step_tokens=3, head_groups=GROUPS
)


def test_flat_keys_are_written_in_their_order_and_read_back() -> None:
    field: TypeAdapter[CacheGeometry] = TypeAdapter(RecordedGeometry)
    text = field.dump_json(RECORD.geometry())
    names = [each.name for each in fields(GeometryRecord)]
    assert list(json.loads(text)) == [name for name in names if name not in ("cache_of", "chunk")]
    assert field.validate_json(text) == RECORD.geometry()
    assert GeometryRecord.of(RECORD.geometry()) == RECORD


def test_layers_are_the_models_and_num_layers_of_the_record_counts_caches() -> None:
    geometry = RECORD.geometry()
    assert geometry.slots.num_layers == len(geometry.widest) == 2
    assert geometry.slots.num_caches == len(geometry.layers) == 3
    assert geometry.slots.heads_held(kv_heads=(2, 2)) == (2, 1, 1)
    assert geometry.as_full().slots.num_caches == 2


def test_other_numbers_of_caches_than_head_groups_are_refused() -> None:
    with pytest.raises(UserError, match="the layers need 3 caches, the geometry has 4"):
        replace(RECORD, num_layers=4).geometry()


SHARED = GeometryRecord("streaming", 64, 2, L_sink=4, L_recent=(8, 16), K=0, cache_of=(0, 1, 1, 0))


def test_a_layer_that_reads_another_cache_has_no_slots() -> None:
    geometry = SHARED.geometry()
    assert geometry.slots.num_layers == 4
    assert [cache.cache for cache in geometry.slots.caches] == [0, 1]
    assert {layer: shape.L_recent for layer, shape in geometry.shapes.items()} == {0: 8, 1: 16}
    assert geometry.shapes[geometry.slots.source(3)].L_recent == 8
    assert geometry.as_full().slots.num_caches == 2
    assert geometry.head_slots((2, 1, 1, 2)) == 2 * 12 + 20


def test_shared_caches_are_written_and_read_back() -> None:
    field: TypeAdapter[CacheGeometry] = TypeAdapter(RecordedGeometry)
    text = field.dump_json(SHARED.geometry())
    assert json.loads(text)["cache_of"] == [0, 1, 1, 0]
    assert field.validate_json(text) == SHARED.geometry()


@pytest.mark.parametrize("cache_of", [(0, 1, 3, 3), (0, 0, 1, 3), (0, 0, 0)])
def test_a_cache_of_a_later_layer_or_of_a_reader_is_refused(cache_of: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match=r"do not read caches|need 1 caches"):
        replace(SHARED, L_recent=8, cache_of=cache_of).geometry()
