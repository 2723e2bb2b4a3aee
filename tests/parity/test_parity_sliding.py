"""Layers that slide over a window: transformers' own masks, and a ring of the window's size."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
import torch
from transformers import AutoModelForCausalLM, MistralConfig, PretrainedConfig, Qwen2Config

from snapexport.contract.build_directory import Build
from snapexport.contract.graph_options import GraphOptions
from snapexport.contract.records import GeometryRecord
from snapexport.exporter.model.probe import look
from snapexport.exporter.read.families import family_of
from snapexport.graphs.markers import ATTENTION, TRACE_DOMAIN
from snapexport.graphs.passes.base import SurgeryError
from snapexport.graphs.passes.decode import DecodeCache
from snapexport.runtime.engine.open_executor import open_executor
from tests.builds import build
from tests.oracle import cases
from tests.oracle.cases import LOGITS, Case
from tests.oracle.checkpoints import WINDOW
from tests.oracle.compare import assert_agrees_with_plain
from tests.oracle.raw import RawBuild
from tests.parity.test_parity_architectures import WINDOWS

torch.set_num_threads(1)
pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("policy", "chunk", "target"),
    [
        ("snapstream", 16, "onnxruntime"),
        ("streaming", 25, "portable"),
        ("snapstream", 96, "portable"),
    ],
)
def test_build_with_only_sliding_layers_agrees_with_plain_transformers(
    tmp_path: Path, policy: str, chunk: int, target: str
) -> None:
    made = rings(tmp_path, policy=policy, L_max=96, prefill_chunk=chunk, target=target, batch=3)
    assert made.manifest["model"]["sliding_window"] == [WINDOW, WINDOW]
    for group in cases.in_groups(WINDOWS, 3):
        assert_agrees_with_plain(made, "mistral-sliding", group, f"{policy} {chunk} {target}")


def test_sliding_ring_longer_than_L_max_agrees_with_plain_transformers(tmp_path: Path) -> None:
    made = rings(tmp_path, L_max=16, prefill_chunk=8, batch=2)
    assert_agrees_with_plain(made, "mistral-sliding", (3, 16), "short prompts")


def rings(directory: Path, **options: Any) -> RawBuild:
    """A build of a model whose every layer slides: there are no cache sizes to choose."""
    build(cases.checkpoint("mistral-sliding"), directory / "b", **options)
    return RawBuild(directory / "b")


def test_fp16_prefill_of_gemma2_is_close_to_transformers(tmp_path: Path) -> None:
    """Gemma's norms and caps, rounded: two chunks of one prompt."""
    options = {"L_max": 64, "prefill_chunk": 32, "policy": "full", "dtype": "fp16"}
    build(cases.checkpoint("gemma2"), tmp_path / "half", **options)
    engine = open_executor(Build.open(tmp_path / "half"), threads=1)
    want = cases.plain("gemma2", 64)
    got = engine.prefill_prompt(0, want.prompt).logits
    assert np.abs(got - want.prefill_logits).max() < 5e-2


@pytest.mark.parametrize("name", ["mistral-sliding", "qwen2-sliding", "gemma2", "gemma3"])
def test_one_position_more_in_the_window_changes_the_logits_of_sliding_checkpoints(
    name: str,
) -> None:
    """Otherwise the tests above would prove little."""
    want = cases.plain(name, 70)
    model = AutoModelForCausalLM.from_pretrained(
        cases.checkpoint(name), sliding_window=WINDOW + 1, attn_implementation="eager"
    )
    with torch.no_grad():
        wider = model(torch.tensor([want.prompt]), logits_to_keep=1).logits[0, -1]
    assert np.abs(wider.numpy() - want.prefill_logits).max() > 100 * LOGITS


def test_sliding_layers_of_one_window_share_one_mask() -> None:
    full = Case("gemma2", policy="full", L_max=160, target="portable")
    model = onnx.load(cases.built(full).directory / "prefill.onnx", load_external_data=False)
    attentions = [node for node in model.graph.node if node.op_type == "Attention"]
    masks = [node.input[3] for node in attentions]
    assert masks[0] == masks[2] != "" and masks[1] == ""


def test_ring_of_another_size_than_the_window_is_refused() -> None:
    attributes = {"layer": 0, "scale": 1.0, "window": 24, "softcap": 0.0}
    marker = gs.Node(ATTENTION, domain=TRACE_DOMAIN, attrs=attributes)
    positions = gs.Variable("position_ids", np.int64, (1, 1))
    graph = gs.Graph(nodes=[marker], inputs=[positions])
    geometry = GeometryRecord("streaming", 96, 1, L_sink=0, L_recent=23, K=0).geometry()
    with pytest.raises(SurgeryError, match="window of 24 positions"):
        DecodeCache(geometry, GraphOptions()).apply(graph)


@pytest.mark.parametrize(
    ("config", "windows"),
    [
        (MistralConfig(num_hidden_layers=2, sliding_window=64), [64, 64]),
        (MistralConfig(num_hidden_layers=2, sliding_window=None), [0, 0]),
        # No sequence of the model outgrows it.
        (MistralConfig(num_hidden_layers=1, sliding_window=8, max_position_embeddings=8), [0]),
        (Qwen2Config(num_hidden_layers=2, sliding_window=64, max_window_layers=1), [0, 0]),
        (
            Qwen2Config(
                num_hidden_layers=2,
                sliding_window=64,
                max_window_layers=1,
                use_sliding_window=True,
            ),
            [0, 64],
        ),
    ],
    ids=[
        "all slide",
        "no window",
        "window as long as the model",
        "sliding off",
        "upper layers slide",
    ],
)
def test_sliding_windows_are_read_from_the_config_by_layer(
    config: PretrainedConfig, windows: list[int]
) -> None:
    decoder = look(config, family_of("", config.model_type))
    assert [layer.window for layer in decoder.layers] == windows
