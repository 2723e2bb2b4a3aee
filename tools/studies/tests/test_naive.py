"""The naive graph equals the ring's except for the order of the cache slots."""

from pathlib import Path

import numpy as np
import pytest

from snapexport.contract import names
from snapexport.contract.build_directory import Build
from snapexport.contract.targets import Target
from snapexport.runtime.engine.open_executor import open_executor
from tools.studies.speed.builds import Builds
from tools.studies.speed.experiments.naive import write
from tools.studies.speed.naive import NaiveDecode

L_MAX, BUDGET = 64, 24


def build_of(checkpoint: Path, directory: Path, target: Target) -> Build:
    return Builds(checkpoint, directory, chunk=16, target=target).get(L_MAX, BUDGET, batch=2)


@pytest.mark.parametrize("target", ["onnxruntime", "portable"])
def test_ring_and_naive_graph_give_the_same_logits_beyond_a_turn_of_the_ring(
    checkpoint: Path, tmp_path: Path, target: Target
) -> None:
    build = build_of(checkpoint, tmp_path, target)
    layer = build.manifest.geometry.layers[0]
    # The ring is full, and the oldest position lies in its first slot.
    length = layer.L_sink + 3 * layer.L_recent
    assert layer.K and layer.cache_slot(length, length) == layer.L_sink and length < L_MAX
    ring, naive = open_executor(build), NaiveDecode(build, write(build), threads=1)
    rng = np.random.default_rng(0)
    vocab_size = build.manifest.model.vocab_size
    for slot in range(2):
        tokens = rng.integers(0, vocab_size, length).tolist()
        ring.prefill_prompt(slot, tokens)
    for name in filter(names.is_past, naive.inputs):
        naive.inputs[name][...] = ring.decode_buffers[name]
    lengths = np.full(2, length)
    for step in range(layer.L_recent + 2):
        given = rng.integers(0, vocab_size, 2), lengths + step, lengths
        wanted = ring.decode(*given).logits.copy()
        np.testing.assert_allclose(naive.run(*given), wanted, atol=2e-5, rtol=1e-4)
    assert not np.allclose(wanted[0], wanted[1], atol=1e-2)
