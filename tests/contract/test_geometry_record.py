"""The object `geometry` of a manifest: flat keys in a fixed order, and back to a geometry."""

import json
from dataclasses import fields, replace

import pytest
from pydantic import TypeAdapter

from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.geometry_record import GeometryRecord, RecordedGeometry
from snapexport.errors import UserError

GROUPS = (((0, 1),), ((0,), (1,)))
RECORD = GeometryRecord(
    "snapstream", 64, 3, L_sink=4, L_recent=12, K=(8, 2, 14), tokens_per_step=3, head_groups=GROUPS
)


def test_flat_keys_are_written_in_their_order_and_read_back() -> None:
    field: TypeAdapter[CacheGeometry] = TypeAdapter(RecordedGeometry)
    text = field.dump_json(RECORD.geometry())
    assert list(json.loads(text)) == [each.name for each in fields(GeometryRecord)]
    assert field.validate_json(text) == RECORD.geometry()
    assert GeometryRecord.of(RECORD.geometry()) == RECORD


def test_layers_are_the_models_and_num_layers_of_the_record_counts_caches() -> None:
    geometry = RECORD.geometry()
    assert geometry.slots.num_layers == len(geometry.widest) == 2
    assert geometry.slots.num_caches == len(geometry.layers) == 3
    assert geometry.slots.heads_held(kv_heads=(2, 2)) == (2, 1, 1)
    assert geometry.as_full().slots.num_caches == 2


def test_other_numbers_of_caches_than_head_groups_are_refused() -> None:
    with pytest.raises(UserError, match="the head groups need 3 caches, the geometry has 4"):
        replace(RECORD, num_layers=4).geometry()
