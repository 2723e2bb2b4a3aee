"""The contract of the graphs: stale cache slots, padding, other batch slots, shared buffers."""

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch

from tests.oracle import cases
from tests.oracle.cases import Case
from tests.oracle.compare import expected_slots, prefill_and_compress
from tests.oracle.raw import Compressed, RawBuild, Slots, present

torch.set_num_threads(1)

CHUNKED = Case()
PORTABLE = Case("llama-mqa", target="portable")
SINGLE_SHOT = Case(prefill_chunk=96, baseline=True)


@pytest.mark.parametrize("length", [1, 20, 21, 33, 64, 95, 96])
def test_single_shot_and_chunked_prefill_fill_the_same_cache(length: int) -> None:
    ids = cases.oracle(CHUNKED, length).prompt
    chunked_logits, chunked = prefill_and_compress(cases.built(CHUNKED), ids)
    single_logits, single = prefill_and_compress(cases.built(SINGLE_SHOT), ids)
    assert np.abs(chunked_logits - single_logits).max() < 1e-4
    for one, other in zip(chunked.topk, single.topk, strict=True):
        assert np.array_equal(one, other)
    for one, other in zip(flat(chunked), flat(single), strict=True):
        assert np.abs(one - other).max() < 1e-5


def flat(request: Compressed) -> list[Any]:
    return [array for pair in request.cache for array in pair]


@pytest.mark.parametrize("length", [2, 19, 37, 96])
def test_compress_step_copies_keys_and_values_unchanged(length: int) -> None:
    build, want = cases.built(CHUNKED), cases.oracle(CHUNKED, length)
    prefilled = build.prefill(want.prompt)
    for layer, pair in enumerate(build.compress(prefilled).cache):
        for got, full in zip(pair, prefilled.cache[layer], strict=True):
            slots = expected_slots(full[0, :, :length], want, CHUNKED, layer)
            assert np.array_equal(got[0], slots)


@pytest.mark.parametrize("case", [CHUNKED, PORTABLE], ids=str)
@pytest.mark.parametrize("length", [2, 20, 27, 40, 96])
def test_stale_cache_slots_and_padding_leave_outputs_unchanged(length: int, case: Case) -> None:
    build, ids = cases.built(case), cases.prompt(length)
    clean, stale = build.prefill(ids), build.prefill(ids, stale=50.0, pad=77)
    assert np.array_equal(clean.logits, stale.logits)
    one, other = build.compress(clean), build.compress(stale)
    assert all(map(np.array_equal, one.topk, other.topk))
    assert all(map(np.array_equal, flat(one), flat(other)))


@pytest.mark.parametrize("length", [2, 40, 95])
def test_padding_of_a_single_shot_prompt_leaves_outputs_unchanged(length: int) -> None:
    build, ids = cases.built(SINGLE_SHOT), cases.prompt(length)
    (one_logits, one), (other_logits, other) = (
        prefill_and_compress(build, ids, pad) for pad in (0, 77)
    )
    assert np.array_equal(one_logits, other_logits)
    assert all(map(np.array_equal, flat(one), flat(other)))


def request_of(build: RawBuild, length: int) -> Compressed:
    return prefill_and_compress(build, cases.prompt(length))[1]


def test_decode_logits_do_not_depend_on_other_batch_slots() -> None:
    build = cases.built(CHUNKED)
    mine = request_of(build, 50)
    one = Slots(build, [mine, request_of(build, 2), request_of(build, 96)])
    other = Slots(build, [mine, request_of(build, 30), request_of(build, 21)])
    for step in range(30):
        assert np.array_equal(one.step([9, 8, 7])[0], other.step([9, 3, step])[0])


@pytest.mark.parametrize("case", [CHUNKED, PORTABLE], ids=str)
def test_decode_does_not_read_cache_slots_beyond_the_valid_ones(case: Case) -> None:
    build = cases.built(case)
    clean, stale = (request_of(build, 10) for _ in range(2))
    for array in flat(stale):
        array[:, :, 10:] = 50.0
    one, other = Slots(build, [clean] * 3), Slots(build, [stale] * 3)
    for step in range(20):
        assert np.array_equal(one.step([step] * 3), other.step([step] * 3))


def test_decode_in_place_gives_the_same_logits_and_caches() -> None:
    build = cases.built(CHUNKED)
    requests = [request_of(build, length) for length in (2, 21, 96)]
    apart, in_place = Slots(build, requests), Slots(build, requests)
    for step in range(40):
        want = apart.step([step, step + 1, step + 2])
        got = step_in_place(in_place, np.array([[step], [step + 1], [step + 2]]))
        assert np.array_equal(got, want), step
    for one, other in zip(apart.cache, in_place.cache, strict=True):
        assert all(map(np.array_equal, one, other))


def step_in_place(slots: Slots, ids: np.ndarray) -> np.ndarray:
    """A decode step whose cache outputs are bound to the buffers of its cache inputs."""
    arrays = slots.feeds(ids) | {"logits": np.zeros((3, 257), np.float32)}  # OrtValues only borrow
    buffers = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items()}
    binding = slots.session.io_binding()
    binding.bind_ortvalue_output("logits", buffers.pop("logits"))
    for name, buffer in buffers.items():
        binding.bind_ortvalue_input(name, buffer)
        if name.startswith("past_key_values."):
            binding.bind_ortvalue_output(name.replace("past_key_values", "present"), buffer)
    slots.session.run_with_iobinding(binding)
    written = {name.replace("past_key_values", "present"): x for name, x in arrays.items()}
    slots.cache, slots.positions = present(written, slots.layers), slots.positions + 1
    return arrays["logits"]
