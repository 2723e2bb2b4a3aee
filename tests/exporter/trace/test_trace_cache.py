"""What comes from the tests' caches is what would be made anew. Keys change with each input."""

import copy
import inspect
from pathlib import Path
from typing import Any
from unittest import mock

import onnx_ir as ir
import pytest
import torch

from snapexport.exporter import trace
from snapexport.exporter.model.probe import load_decoder
from snapexport.exporter.read import open_checkpoint
from snapexport.exporter.read.checkpoint import Checkpoint
from snapexport.exporter.trace import link, with_batch
from snapexport.exporter.trace.link import simplify
from tests import sources, trace_cache
from tests.oracle import checkpoints, on_disk
from tests.store import Store


def linked(model: ir.Model, checkpoint: Checkpoint, decoder: Any) -> bytes:
    sources = link.Traced.of(model, decoder).sources
    assert len(sources) > 15
    link.link(model, sources, checkpoint.tensors)
    return ir.to_proto(model).SerializeToString(deterministic=True)


def elsewhere(decoder: Any) -> Any:
    """The same config, of a checkpoint in another directory."""
    moved = copy.deepcopy(decoder)
    moved.config._name_or_path = "/another/checkpoint"
    return moved


@pytest.mark.slow
def test_a_cached_trace_links_to_the_same_graph(checkpoint: Path, tmp_path: Path) -> None:
    """Also as the trace of the same config in another directory."""
    found = open_checkpoint(checkpoint)
    decoder = load_decoder(found)
    make = inspect.unwrap(trace.trace_decode)
    cached = trace_cache.caching(make, store := Store(tmp_path))
    traced, loaded = cached(decoder, torch.float32), cached(elsewhere(decoder), torch.float32)
    assert len(store.names()) == 1
    anew = make(elsewhere(decoder), torch.float32)
    graphs = {linked(with_batch(model, 2), found, decoder) for model in (traced, loaded, anew)}
    assert len(graphs) == 1


def test_trace_cache_key_changes_with_every_input_of_the_trace(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = load_decoder(open_checkpoint(checkpoint))
    other = copy.deepcopy(decoder)
    other.config.rms_norm_eps *= 2
    module = trace.__name__
    made = ("decode", module, decoder, torch.float32, 2)
    assert trace_cache.key(*made) == trace_cache.key(*copy.deepcopy(made))
    keys = {
        trace_cache.key(*made),
        trace_cache.key("prefill", *made[1:]),
        trace_cache.key("decode", module, other, torch.float32, 2),
        trace_cache.key("decode", module, decoder, torch.float16, 2),
        trace_cache.key("decode", module, decoder, torch.float32, 3),
    }
    monkeypatch.setattr(sources, "digest", lambda module: "edited")
    keys.add(trace_cache.key(*made))
    assert len(keys) == 6


def test_a_trace_that_was_simplified_before_links_to_the_same_graph(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = open_checkpoint(checkpoint)
    decoder = load_decoder(found)
    traced, graphs = trace.trace_decode(decoder, torch.float32), set()
    cached = trace_cache.caching_simplify(simplify, store := Store(tmp_path))
    for made_by in (simplify, cached, cached):
        with mock.patch.object(link, "simplify", made_by):
            graphs.add(linked(with_batch(traced, 2), found, decoder))
    assert len(store.names()) == len(graphs) == 1
    module = simplify.__module__
    keys = {trace_cache.simplify_key(with_batch(traced, batch), module) for batch in (2, 2, 3)}
    monkeypatch.setattr(sources, "digest", lambda module: "edited")
    keys.add(trace_cache.simplify_key(with_batch(traced, 2), module))
    assert len(keys) == 3


def test_oracle_answers_anew_when_anything_that_makes_the_answer_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, model = [], tmp_path / "model"
    model.mkdir()

    @on_disk.kept
    def answer(model_dir: Path, *inputs: object, steps: int = 0) -> object:
        asked.append(inputs)
        return model_dir.joinpath("config.json").read_text(), inputs, steps

    def twice(*inputs: object, steps: int = 0) -> int:
        """How often the oracle was asked."""
        first, second = (answer(model, *inputs, steps=steps) for _ in range(2))
        assert first == second == (model.joinpath("config.json").read_text(), inputs, steps)
        return len(asked)

    with on_disk.kept_in(Store(tmp_path / "kept")):
        (model / "config.json").write_text("{}")
        assert [twice(1), twice(2), twice(2, steps=3), twice(1)] == [1, 2, 3, 3]
        (model / "config.json").write_text("[]")
        assert twice(1) == 4
        monkeypatch.setattr(sources, "digest", lambda module: "edited")
        assert twice(1) == 5


def test_a_checkpoint_comes_back_with_the_files_that_it_had(tmp_path: Path) -> None:
    with on_disk.kept_in(store := Store(tmp_path / "kept")):
        made = [
            checkpoints.make("llama", tmp_path / name, seed=seed)
            for name, seed in (("first", 1), ("again", 1), ("other", 2))
        ]
        (tmp_path / "filled").mkdir()
        (tmp_path / "filled" / "note").touch()
        filled = on_disk.files_of(checkpoints.make("llama", tmp_path / "filled", seed=3))
    first, again, other = map(on_disk.files_of, made)
    assert first == again != other and "model.safetensors" in first
    assert filled.keys() - first.keys() == {"note"}
    assert len(store.names()) == 2
