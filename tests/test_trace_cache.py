"""A trace from the cache becomes the same graph as a fresh one. Its key changes with each input."""

import copy
import inspect
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
import torch

from snapexport.exporter import link, trace
from snapexport.exporter.architectures import load_config
from snapexport.exporter.batch import with_batch
from snapexport.exporter.checkpoint import Checkpoint
from tests import trace_cache


def linked(model: ir.Model, checkpoint: Checkpoint, config: Any) -> bytes:
    sources = link.checkpoint_tensors(model, config)
    assert len(sources) > 15
    link.link(model, sources, checkpoint.tensors)
    return ir.to_proto(model).SerializeToString(deterministic=True)


def elsewhere(config: Any) -> Any:
    """The same config, of a checkpoint in another directory."""
    moved = copy.deepcopy(config)
    moved._name_or_path = "/another/checkpoint"
    return moved


def test_a_cached_trace_links_to_the_same_graph(checkpoint: Path, tmp_path: Path) -> None:
    """Also as the trace of the same config in another directory."""
    found = Checkpoint.open(checkpoint)
    config = load_config(found)
    make = inspect.unwrap(trace.trace_decode)
    cached = trace_cache.caching(make, tmp_path)
    traced, loaded = cached(config, torch.float32), cached(elsewhere(config), torch.float32)
    assert len(list(tmp_path.iterdir())) == 1
    anew = make(elsewhere(config), torch.float32)
    graphs = {linked(with_batch(model, 2), found, config) for model in (traced, loaded, anew)}
    assert len(graphs) == 1


def test_trace_cache_key_changes_with_every_input_of_the_trace(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config(Checkpoint.open(checkpoint))
    other = copy.deepcopy(config)
    other.rms_norm_eps *= 2
    made = ("decode", config, torch.float32, 2)
    assert trace_cache.key(*made) == trace_cache.key(*copy.deepcopy(made))
    keys = {
        trace_cache.key(*made),
        trace_cache.key("prefill", *made[1:]),
        trace_cache.key("decode", other, torch.float32, 2),
        trace_cache.key("decode", config, torch.float16, 2),
        trace_cache.key("decode", config, torch.float32, 3),
    }
    monkeypatch.setattr(trace_cache, "sources", lambda: "edited")
    keys.add(trace_cache.key(*made))
    monkeypatch.setattr(trace_cache, "version", lambda library: "0")
    keys.add(trace_cache.key(*made))
    assert len(keys) == 7
