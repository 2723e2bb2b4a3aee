"""A build compares a small decoder of its checkpoint with transformers, and is refused if wrong."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from re import escape
from typing import Any
from unittest.mock import Mock

import pytest

from snapexport.builder import run, selfcheck
from snapexport.builder.options import BuildOptions
from snapexport.builder.progress import Silent
from snapexport.builder.resolved import resolve
from snapexport.compare import layers
from snapexport.compare.difference import HINT, MOST
from snapexport.compare.layers import compared_places
from snapexport.contract.build_directory import Build
from snapexport.contract.manifest import Verified
from snapexport.errors import UserError, first_line
from snapexport.exporter import trace
from snapexport.exporter.model import Decoder, models, probe
from snapexport.exporter.model.probe import look
from snapexport.exporter.read.families import family_of
from snapexport.exporter.weights import conversion
from snapexport.graphs.passes.base import graph_input
from snapexport.methods.states import surgery
from snapexport.runtime.engine.backend import GraphError
from tests.builds import build
from tests.exporter.weights.forms.test_signed_integers import quantized_by
from tests.oracle import checkpoints
from tests.oracle.families import config_of

pytestmark = pytest.mark.slow

OPTIONS: dict[str, Any] = {"L_max": 256, "kv_budget": 64, "batch": 1}


def compared(folder: Path) -> Verified:
    """The comparison of a build of the checkpoint `m`, without the rest of the build."""
    asked = BuildOptions.of(model=str(folder / "m"), out=folder / "b", **OPTIONS)
    return selfcheck.verify(resolve(asked), Silent())


def test_manifest_says_what_was_compared(tmp_path: Path) -> None:
    checkpoints.make("smollm3", tmp_path / "m")
    build(tmp_path / "m", tmp_path / "b", **OPTIONS)
    found = Build.open(tmp_path / "b").manifest.verified
    assert found is not None and found.layers == [0, 1, 2, 3, 4]
    assert found.chunks >= 3 and found.decode_steps >= 8 and found.kept_positions > 100
    assert 0 < found.largest_difference < MOST


@pytest.mark.parametrize("name", ["afmoe", "gpt2.scaled"])
def test_masks_by_name_and_attention_that_is_only_eager_are_compared(
    name: str, tmp_path: Path
) -> None:
    checkpoints.make(name, tmp_path / "m")
    assert 0 < compared(tmp_path).largest_difference < MOST


@pytest.mark.parametrize("error", [ValueError("not enough"), GraphError("failed", "again")])
def test_what_the_comparison_could_not_follow_is_refused(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def verify(*_: object) -> None:
        raise error

    monkeypatch.setattr(selfcheck, "verify", verify)
    with pytest.raises(
        UserError, match=f"can't be compared with transformers: .*{escape(first_line(error))}"
    ) as found:
        selfcheck.verify_if_due(Mock(), Silent())
    assert type(found.value) is UserError and found.value.hint == HINT


def test_a_held_family_is_compared_only_if_asked(checkpoint: Path, tmp_path: Path) -> None:
    plain = build(checkpoint, tmp_path / "plain", **OPTIONS)
    assert plain.manifest.verified is None
    assert '"verified"' not in (tmp_path / "plain" / "manifest.json").read_text()
    asked = build(checkpoint, tmp_path / "asked", verify=True, **OPTIONS)
    assert asked.manifest.verified is not None


def test_quantized_layers_are_compared_without_the_library_that_made_them(tmp_path: Path) -> None:
    quantized_by("awq", "smollm3", tmp_path / "m")
    assert 0 < compared(tmp_path).largest_difference < MOST


def test_a_small_model_replaces_layers_that_are_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints.make("ernie4_5_moe", tmp_path / "m")
    monkeypatch.setattr(layers, "MOST_BYTES", 700 << 20)
    stages = Stages()
    run(BuildOptions.of(model=str(tmp_path / "m"), out=tmp_path / "b", **OPTIONS), stages)
    found = Build.open(tmp_path / "b").manifest.verified
    assert found is not None and found.miniature and found.kept_positions > 0
    assert 0 < found.largest_difference < MOST
    (said,) = [text for text in stages.texts if text.startswith("comparing")]
    assert "a small model" in said and said.endswith("about 7 s, 700 MiB")


def test_experts_that_are_joined_in_another_order_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints.make("ernie4_5_moe", tmp_path / "m")
    monkeypatch.setattr(layers, "MOST_BYTES", 700 << 20)
    rows = conversion.Rows
    monkeypatch.setattr(conversion, "Rows", lambda parts: rows(parts[::-1]))
    with pytest.raises(UserError, match=r"another tensor model\.layers\.\d\.mlp\.experts\.gate_up"):
        build(tmp_path / "m", tmp_path / "b", **OPTIONS)
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_layers_are_compared_while_memory_suffices() -> None:
    """Of a model whose layers are all alike; the first and the last are always among them."""
    config = config_of("olmo2", num_hidden_layers=32)
    decoder = look(config, family_of("", "olmo2"))
    taken = {size: compared_places(decoder, [size << 20] * 32) for size in (1, 300, 600, 900)}
    assert taken[1] == list(range(32))
    assert taken[300] == [0, 8, 16, 31] and taken[600] == [0, 31] and not taken[900]


class Stages(Silent):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def stage(self, text: str) -> None:
        self.texts.append(text)


def half_split(decoder: Decoder) -> Decoder:
    assert decoder.rope is not None and decoder.rope.interleaved
    return replace(decoder, rope=replace(decoder.rope, frequencies="halves", interleaved=False))


def backwards(decoder: Decoder) -> Decoder:
    assert decoder.rope is not None
    return replace(decoder, rope=replace(decoder.rope, interleaved=not decoder.rope.interleaved))


def earlier_caches(decoder: Decoder) -> Decoder:
    """A layer that reads another's cache reads that of the first of its kind."""
    first = [
        place if layer.cache_of == place else layer.cache_of % 2
        for place, layer in enumerate(decoder.layers)
    ]
    layers = zip(decoder.layers, first, strict=True)
    return replace(decoder, layers=tuple(replace(layer, cache_of=of) for layer, of in layers))


def alike(decoder: Decoder) -> Decoder:
    return replace(decoder, layers=tuple(replace(layer, kind=0) for layer in decoder.layers))


Plant = Callable[[Decoder], Decoder]
PLANTED: dict[str, tuple[str, Plant]] = {
    "interleaved RoPE taken for half-split": ("glm4", half_split),
    "layers without RoPE taken for layers with it": ("smollm3", alike),
    "Cohere's RoPE": ("cohere", half_split),
    "ERNIE's RoPE": ("ernie4_5", half_split),
    "Helium's RoPE": ("helium", half_split),
    "RoPE in the wrong direction": ("olmo2", backwards),
    "the cache of another layer": ("gemma4_text.shared", earlier_caches),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_wrong_form_is_refused_with_the_layer_and_leaves_nothing(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, plant = PLANTED[fault]
    checkpoints.make(name, tmp_path / "m")
    load = probe.load_decoder
    monkeypatch.setattr(probe, "load_decoder", lambda *a, **k: plant(load(*a, **k)))
    with pytest.raises(UserError, match=r"differ from transformers'.*layer(s| \d)"):
        build(tmp_path / "m", tmp_path / "b", **OPTIONS)
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_a_lost_factor_of_logits_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints.make("granite", tmp_path / "m")
    build(tmp_path / "m", tmp_path / "right", **OPTIONS)

    def plain(model: Any, _: Decoder, states: Any) -> Any:
        logits = model.get_output_embeddings()(states)
        return (logits[:, 0] if states.shape[1] == 1 else logits).float()

    monkeypatch.setattr(models, "logits_of", plain)
    monkeypatch.setattr(trace, "logits_of", plain)
    with pytest.raises(UserError, match="differ from transformers'"):
        build(tmp_path / "m", tmp_path / "b", **OPTIONS)
    assert {path.name for path in tmp_path.iterdir()} == {"m", "right"}


def test_states_that_take_the_voters_of_a_block_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints.make("lfm2.states", tmp_path / "m")
    all_valid = partial(graph_input, name="chunk_length")
    monkeypatch.setattr(surgery, "taken_tokens", all_valid)
    with pytest.raises(UserError, match="beginning with a prompt in blocks"):
        build(tmp_path / "m", tmp_path / "b", extend=True, verify=True, **OPTIONS)
    monkeypatch.undo()
    build(tmp_path / "m", tmp_path / "b", extend=True, verify=True, **OPTIONS)
