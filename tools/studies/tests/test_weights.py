"""What the study of weights in few bits compares."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFReader
from transformers import AutoModelForCausalLM

from tests.exporter import gguf_files
from tools.studies.quality.reordered import reordered
from tools.studies.quality.weights import Job, Made, compared, gguf_of, passages
from tools.studies.quality.weights_speed import measured, variant
from tools.studies.speed.from_gguf import checkpoint_of


@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_a_model_with_its_channels_in_another_order_computes_the_same(
    name: str, tmp_path: Path
) -> None:
    file = gguf_files.make(name, tmp_path, gguf_files.Kind.Q4_0)
    moved = reordered(file, tmp_path)
    ids = torch.arange(9)[None]
    found = []
    for one in (file, moved):
        model = AutoModelForCausalLM.from_pretrained(checkpoint_of(one, tmp_path / "checkpoints"))
        found.append(model(ids).logits.detach().numpy())
    np.testing.assert_allclose(found[1], found[0], atol=1e-4)
    before, after = ({t.name: t.data for t in GGUFReader(one).tensors} for one in (file, moved))
    down = "blk.0.ffn_down.weight"
    assert before.keys() == after.keys() and not np.array_equal(before[down], after[down])
    assert reordered(file, tmp_path) == moved


def test_losses_are_of_the_texts_own_tokens(tmp_path: Path) -> None:
    texts = np.array([[0, 1, 2], [2, 0, 1]])
    exact = np.log(np.full((2, 2, 3), 1 / 3)).astype(np.float16)
    other = exact.copy()
    other[:, 0] = np.log([0.25, 0.5, 0.25])
    row = compared(Made(4.5, other), exact, Job(tmp_path, tmp_path, tmp_path, texts, None))
    lost = np.array([np.log(2 / 3), np.log(4 / 3)]) / 2
    assert row["nats"] == pytest.approx(lost.mean(), abs=1e-3)
    assert row["nats_se"] == pytest.approx(abs(lost[0] - lost[1]) / 2, abs=1e-3)
    assert row["kl"] > 0 and row["bits_per_weight"] == 4.5


def test_passages_have_one_length_and_come_from_late_in_their_texts(tmp_path: Path) -> None:
    class Letters:
        def __call__(self, text: str) -> "Letters":
            self.input_ids = list(map(ord, text))
            return self

    (tmp_path / "long.txt").write_text("abc" * 2 + "xyz")
    (tmp_path / "short.txt").write_text("abc")
    assert passages(tmp_path, Letters(), 5, 3).tolist() == [list(map(ord, "xyz"))]


PEER = """
import time
PACKAGES = ()
class Peer:
    def fill(self, context): self.context = context
    def step(self): time.sleep(self.context / 1e6)
def make(threads, **options): return Peer()
"""


def test_steps_are_timed_behind_a_context(tmp_path: Path) -> None:
    job = Job(tmp_path / "m.gguf", tmp_path / "m.F32.gguf", tmp_path, np.zeros((0, 0), int), None)
    made = variant("llama.cpp Q8_0", job)
    assert made.options["weights"] == made.options["gguf"] == str(gguf_of(job, "Q8_0"))
    plugin = tmp_path / "peer.py"
    plugin.write_text(PEER)
    one = replace(made, name="one", python=Path(sys.executable), plugin=str(plugin))
    (found,) = measured([one], rounds=1).values()
    assert 1.024 <= found["low"] <= found["median"] <= found["high"]
